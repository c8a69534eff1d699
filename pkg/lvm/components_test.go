package lvm

import (
	"maps"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
)

func TestDevicesAreOfTheirGroupsVolumes(t *testing.T) {
	list := []devmapper.Entry{
		{Name: "carve-cv1", Major: 253, Minor: 1}, {Name: "carve-cv--2", Major: 253, Minor: 2}, {Name: "carve-pool-tpool", Major: 253, Minor: 3},
		{Name: "carve--more-cv4", Major: 253, Minor: 4}, {Name: "carve.crypt.cv5", Major: 253, Minor: 5}, {Name: "carve", Major: 253, Minor: 6},
	}
	encrypted := map[string]blockdev.Number{"cv5": {Major: 253, Minor: 5}}
	for group, want := range map[string]map[string]blockdev.Number{
		"carve":      {"cv1": {Major: 253, Minor: 1}, "cv-2": {Major: 253, Minor: 2}},
		"carve-more": {"cv4": {Major: 253, Minor: 4}},
		"none":       {},
	} {
		if got := numbersOf(group, list); !maps.Equal(got.Volumes, want) || !maps.Equal(got.Encrypted, encrypted) {
			t.Errorf("%s: got %v, want %v and encrypted %v", group, got, want, encrypted)
		}
	}
}
