//go:build kernel

package lvm_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func attach(t *testing.T, loop, to string) (detach func()) {
	t.Helper()
	command := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("losetup", args...).CombinedOutput(); err != nil {
			t.Fatalf("losetup %v: %v\n%s", args, err, out)
		}
	}
	command(loop, to)
	attached := true
	detach = func() {
		if attached {
			command("--detach", loop)
			attached = false
		}
	}
	t.Cleanup(detach)
	return detach
}

func mapOnto(t *testing.T, name, device string) (path string) {
	t.Helper()
	sectors := must.Get(blockdev.Sectors(must.Get(blockdev.NumberOf(device))(t)))(t)
	table := fmt.Sprintf("0 %d linear %s 0", sectors, device)
	dmsetup(t, "create", name, "--table", table)
	t.Cleanup(func() { dmsetup(t, "remove", name) })
	return "/dev/mapper/" + name
}

func copyTo(t *testing.T, device string, contents []byte) {
	t.Helper()
	f := must.Get(os.OpenFile(device, os.O_WRONLY, 0))(t)
	must.Get(f.Write(contents))(t)
	must.Succeed(t, errors.Join(f.Sync(), f.Close()))
}

// A user of a volume can copy a group into it.
func TestNoGroupIsLookedForOnWhatLiesOnAVolume(t *testing.T) {
	const ours, theirs, size = "carve-ours", "carve-theirs", 64 << 20
	group(t, ours)
	h := host(t)
	must.Get(h.Scan(t.Context(), []string{ours}))(t)
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: ours, Volume: "v", Extents: size / (4 << 20)}))
	volume := "/dev/" + ours + "/v"

	file, loop := filepath.Join(t.TempDir(), "disk"), "/dev/loop0"
	must.Succeed(t, os.WriteFile(file, make([]byte, size), 0o600))
	detach := attach(t, loop, file)
	lvmByHand(t, "vgcreate", "--yes", theirs, loop)
	found := must.Get(h.Scan(t.Context(), []string{theirs}))(t)
	if len(found) != 1 {
		t.Fatalf("a group in a file: %+v", found)
	}
	h.Pin(theirs, found[0].Identity())
	must.Get(h.Metadata(theirs))(t)
	detach()

	// The path now leads to a volume of ours with the same group.
	copyTo(t, volume, must.Get(os.ReadFile(file))(t))
	attach(t, loop, volume)
	partitioned := "/dev/loop1"
	attach(t, partitioned, volume)
	mapped := mapOnto(t, "theirs", volume)
	deeper := mapOnto(t, "deeper", partitioned)
	if _, err := h.Metadata(theirs); !errors.Is(err, lvm.ErrNotFound) {
		t.Errorf("metadata in a volume: %v, want %v", err, lvm.ErrNotFound)
	}
	err := h.Create(t.Context(), lvm.CreateOptions{Group: theirs, Volume: "w", Extents: 1})
	if !errors.Is(err, lvm.ErrNotFound) || !errors.Is(err, lvm.ErrUserData) {
		t.Errorf("a volume in a volume: %v, want %v", err, lvm.ErrUserData)
	}
	if found := must.Get(h.Scan(t.Context(), []string{theirs}))(t); len(found) != 0 {
		t.Errorf("a group in a volume is found: %+v", found)
	}
	fresh := host(t)
	if found := must.Get(fresh.Scan(t.Context(), []string{theirs}))(t); len(found) != 0 || len(fresh.Others(theirs)) != 0 {
		t.Errorf("a group in a volume is found by a host that does not know it: %+v, others %q", found, fresh.Others(theirs))
	}
	excluded := fresh.Excluded()
	for _, device := range []string{loop, partitioned, mapped, deeper} {
		n := must.Get(blockdev.NumberOf(device))(t)
		path := "/dev/" + filepath.Base(must.Get(filepath.EvalSymlinks("/sys/dev/block/"+n.String()))(t))
		if !slices.ContainsFunc(excluded, func(e lvm.Excluded) bool { return e.Path == path && strings.Contains(e.Reason, "carve--ours-v") }) {
			t.Errorf("%s (%s) and the volume are not among the devices that were left out: %v", device, path, excluded)
		}
		if _, err := fresh.Label(device); !errors.Is(err, lvm.ErrUserData) {
			t.Errorf("the label of %s: %v, want %v", device, err, lvm.ErrUserData)
		}
		if _, err := fresh.Examine(t.Context(), device); !errors.Is(err, lvm.ErrUserData) {
			t.Errorf("what is on %s: %v, want %v", device, err, lvm.ErrUserData)
		}
		if err := fresh.InitDevice(t.Context(), lvm.InitOptions{Device: device, UUID: found[0].Devices[0].UUID, Overwrite: true}); !errors.Is(err, lvm.ErrUserData) {
			t.Errorf("making %s a physical volume: %v, want %v", device, err, lvm.ErrUserData)
		}
	}
	for _, d := range must.Get(fresh.BlockDevices())(t) {
		if onVolume := d.UserData != ""; onVolume == slices.Contains([]string{"vda", "vdb", "vdc"}, d.Name) {
			t.Errorf("%s: %q", d.Path, d.UserData)
		}
	}
}

// The file lies in a file system on an administrator's logical volume.
func TestAGroupInAFileThatLiesInAVolumeIsFound(t *testing.T) {
	const ours, theirs = "carve-ours", "carve-inner"
	group(t, ours)
	lvmByHand(t, "lvcreate", "--yes", "--name", "v", "--size", "128m", ours)
	dir := t.TempDir()
	if out, err := exec.Command("mkfs.ext4", "-q", "/dev/"+ours+"/v").CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	must.Succeed(t, unix.Mount("/dev/"+ours+"/v", dir, "ext4", 0, ""))
	t.Cleanup(func() { must.Succeed(t, unix.Unmount(dir, 0)) })
	loop := loopDisk(t, dir, "disk", 64<<20)
	lvmByHand(t, "vgcreate", "--yes", theirs, loop)
	t.Cleanup(func() { lvmByHand(t, "vgremove", "--yes", theirs) })
	h := host(t)
	if found := must.Get(h.Scan(t.Context(), []string{theirs}))(t); len(found) != 1 {
		t.Errorf("found %+v, left out %v", found, h.Excluded())
	}
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: theirs, Volume: "w", Extents: 1}))
	must.Succeed(t, h.Remove(t.Context(), theirs, []string{"w"}))
}
