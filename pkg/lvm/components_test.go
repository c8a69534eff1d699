package lvm

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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

func TestAGroupThatACommandHasLockedIsNotLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lock", "lvm")
	unlock, err := lockGroup(dir, "carve")
	if err != nil {
		t.Fatalf("error %v", err)
	}
	if _, err := lockGroup(dir, "carve"); !errors.Is(err, ErrBusy) {
		t.Errorf("it is locked twice, error %v", err)
	}
	if other, err := lockGroup(dir, "other"); err != nil {
		t.Errorf("another group is locked, too, error %v", err)
	} else {
		other()
	}
	unlock()
	theirs, err := os.Open(filepath.Join(dir, "V_carve"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := unix.Flock(int(theirs.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("it stays locked: %v", err)
	}
	if _, err := lockGroup(dir, "carve"); !errors.Is(err, ErrBusy) {
		t.Errorf("it is locked beside a reader, error %v", err)
	}
}
