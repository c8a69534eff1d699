//go:build kernel

package lvm_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func TestNodesOfVolumesThatAreGoneAreDropped(t *testing.T) {
	const name, other = "carve-test", "carve"
	abandon := func(dir, link, node string) {
		t.Helper()
		must.Succeed(t, errors.Join(
			os.MkdirAll(dir, 0o755),
			os.Symlink(node, filepath.Join(dir, link)),
			unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(253, 4000))),
		))
	}
	gone := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is there: error %v", path, err)
			}
		}
	}
	group(t, name)
	h := host(t)
	must.Get(h.Scan(t.Context(), []string{name}))(t)
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "stays", Extents: 1}))
	// Another group's nodes stay.
	abandon("/dev/"+other, "gone", "/dev/mapper/carve-gone")

	abandon("/dev/"+name, "gone", "/dev/mapper/carve--test-gone")
	if _, err := h.Scan(t.Context(), []string{name}); err != nil {
		t.Error(err)
	}
	gone("/dev/"+name+"/gone", "/dev/mapper/carve--test-gone")
	if _, err := h.Device(name, "stays"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/dev/" + other + "/gone", "/dev/mapper/carve-gone"} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}

	// vgcreate refuses a name that exists under /dev.
	disk := loopDisk(t, t.TempDir(), "disk", 64<<20)
	lvmByHand(t, "pvcreate", "--yes", disk)
	must.Succeed(t, h.CreateGroup(t.Context(), lvm.GroupOptions{Group: other, Devices: []string{disk}, ExtentSize: 4 << 20}))
	gone("/dev/"+other, "/dev/mapper/carve-gone")
	lvmByHand(t, "vgremove", "--yes", other)
	lvmByHand(t, "pvremove", "--yes", disk)
}

// LVM replaces the link of a volume that it changes by removing it first.
func TestALinkThatAKilledCommandTookAwayIsMadeAgain(t *testing.T) {
	const name = "carve-test"
	group(t, name)
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	killed := filepath.Join(dir, "killed-lvm")
	script := "#!/bin/sh\n[ \"$1\" = lvextend ] || exec lvm \"$@\"\nlvm \"$@\"\nrm /dev/" + name + "/v\nkill -KILL $$\n"
	must.Succeed(t, os.WriteFile(killed, []byte(script), 0o700))
	h := must.Get(lvm.NewHost(&lvm.Runner{Binary: killed, Timeout: time.Minute, SystemDir: dir}))(t)
	must.Get(h.Scan(t.Context(), []string{name}))(t)
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "v", Extents: 1}))
	if err := h.Extend(t.Context(), name, "v", 2); err == nil {
		t.Error("a killed command succeeded")
	}
	if d, err := h.Device(name, "v"); err != nil {
		t.Errorf("the volume's device: %+v, %v", d, err)
	}
}
