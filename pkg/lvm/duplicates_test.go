package lvm

import (
	"maps"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
)

func TestDevicesThatLeadToTheSameAreNoCopies(t *testing.T) {
	file := blockdev.LoopFile{Inode: 1}
	for name, test := range map[string]struct {
		origins map[string]origin
		want    []string
	}{
		"a disk and its copy":                   {map[string]origin{"sda": {below: []string{"sda"}}, "sdb": {below: []string{"sdb"}}}, []string{"sda", "sdb"}},
		"both paths of a multipath":             {map[string]origin{"dm-0": {below: []string{"dm-0", "sda", "sdb"}}, "sda": {below: []string{"sda"}}, "sdb": {below: []string{"sdb"}}}, []string{"dm-0"}},
		"a multipath, and a copy":               {map[string]origin{"dm-0": {below: []string{"dm-0", "sda"}}, "sda": {below: []string{"sda"}}, "sdb": {below: []string{"sdb"}}}, []string{"dm-0", "sdb"}},
		"an array and a former member":          {map[string]origin{"md0": {below: []string{"md0", "sda"}}, "sda": {below: []string{"sda"}, member: true}, "sdb": {below: []string{"sdb"}, member: true}}, []string{"md0"}},
		"members of an array that does not run": {map[string]origin{"sda": {below: []string{"sda"}, member: true}, "sdb": {below: []string{"sdb"}, member: true}}, []string{"sda", "sdb"}},
		"a mapping of a loop device":            {map[string]origin{"dm-0": {below: []string{"dm-0", "loop0"}}, "loop0": {below: []string{"loop0"}}}, []string{"dm-0"}},
		"a mapping of one of two loop devices over a file": {map[string]origin{
			"dm-0": {below: []string{"dm-0", "loop1"}}, "loop0": {below: []string{"loop0"}, file: file}, "loop1": {below: []string{"loop1"}, file: file},
		}, []string{"dm-0"}},
		"what it lies on is not known":  {map[string]origin{"sda": {}, "sdb": {}}, []string{"sda", "sdb"}},
		"layers of layers, and a stack": {map[string]origin{"dm-1": {below: []string{"dm-1", "md0", "sda"}}, "md0": {below: []string{"md0", "sda"}}, "sda": {below: []string{"sda"}}}, []string{"dm-1"}},
	} {
		var devices []*blockdev.Device
		for _, name := range slices.Sorted(maps.Keys(test.origins)) {
			devices = append(devices, &blockdev.Device{Name: name})
		}
		for range 2 {
			var got []string
			for _, left := range distinct(devices, func(b *blockdev.Device) origin { return test.origins[b.Name] }) {
				got = append(got, left.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: %q are distinct, want %q", name, got, test.want)
			}
			slices.Reverse(devices)
		}
	}
}
