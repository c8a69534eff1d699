//go:build kernel

package lvm_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func TestACopyOfADiskIsSeenAndWhatLeadsToTheSameDiskIsNone(t *testing.T) {
	const name, first, second, copied = "carve-copied", "/dev/loop41", "/dev/loop42", "/dev/loop43"
	dir := t.TempDir()
	disk, other := filepath.Join(dir, "disk"), filepath.Join(dir, "copy")
	must.Succeed(t, os.WriteFile(disk, nil, 0o600))
	must.Succeed(t, os.Truncate(disk, 32<<20))
	attach(t, first, disk)
	lvmByHand(t, "vgcreate", "--yes", name, first)
	h := host(t)
	scan := func() []lvm.Group {
		t.Helper()
		return must.Get(h.Scan(t.Context(), []string{name}))(t)
	}
	known := scan()
	if len(known) != 1 {
		t.Fatalf("found %+v", known)
	}
	h.Pin(name, known[0].Identity())
	create := func(volume string) error {
		return h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: volume, Extents: 1})
	}
	used := func(when string) {
		t.Helper()
		if got := must.Get(h.Duplicated())(t); len(got) != 0 {
			t.Errorf("%s: %q have copies", when, got)
		}
		h.Pin(name, lvm.Identity{}) // This makes Scan look at all devices.
		h.Pin(name, known[0].Identity())
		if got := scan(); len(got) != 1 {
			t.Errorf("%s: found %+v, others %+v", when, got, h.Others(name))
		}
	}
	used("the disk alone")
	detachSecond := attach(t, second, disk)
	used("a further loop device of its file")
	detachSecond()
	dmsetup(t, "create", "carve-over", "--table", "0 65536 linear "+first+" 0")
	used("a mapping of it")
	dmsetup(t, "remove", "carve-over")

	must.Succeed(t, os.WriteFile(other, must.Get(os.ReadFile(disk))(t), 0o600))
	detach := attach(t, copied, other)
	if got := must.Get(h.Duplicated())(t); !slices.Equal(got, []string{name}) {
		t.Errorf("%q have copies, want %s", got, name)
	}
	if err := create("cv1"); !errors.Is(err, lvm.ErrNotFound) {
		t.Errorf("create beside a copy: %v, want %v", err, lvm.ErrNotFound)
	}
	for _, again := range []string{"where it was", "on all devices"} {
		if got := scan(); len(got) != 0 {
			t.Errorf("%s: found %+v", again, got)
		}
		if others := h.Others(name); len(others) != 1 || others[0].UUID != known[0].UUID || len(others[0].Duplicates) != 1 ||
			others[0].Duplicates[0].UUID != known[0].Devices[0].UUID || !slices.Equal(others[0].Duplicates[0].Paths, []string{first, copied}) {
			t.Errorf("%s: the others are %+v, want the group on %s and %s", again, others, first, copied)
		}
	}
	detach()
	used("the copy is gone")
	must.Succeed(t, create("cv1"))
	must.Succeed(t, h.Remove(t.Context(), name, []string{"cv1"}))
	lvmByHand(t, "vgremove", "--yes", name)
	lvmByHand(t, "pvremove", "--yes", first)
}
