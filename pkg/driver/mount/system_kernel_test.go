//go:build kernel

package mount_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mounttest"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// disk is a spare disk of the test machine.
const disk = "/dev/vdc"

func formatDisk(t *testing.T, fsType filesystem.Type) (mount.Device, int64) {
	t.Helper()
	must.Succeed(t, filesystem.Format(t.Context(), disk, filesystem.FormatOptions{
		Type: fsType, UUID: "01234567-89ab-cdef-0123-456789abcdef",
	}))
	t.Cleanup(func() {
		f, err := os.OpenFile(disk, os.O_WRONLY|os.O_SYNC, 0)
		if err == nil {
			_, err = f.Write(make([]byte, 1<<20))
			f.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	device := must.Get(mount.System{}.Node(disk))(t)
	size := must.Get(mount.System{}.NodeSize(disk))(t)
	return device, size
}

func TestSystem(t *testing.T) {
	for _, fsType := range []filesystem.Type{filesystem.Ext4, filesystem.Btrfs} {
		t.Run(string(fsType), func(t *testing.T) {
			device, size := formatDisk(t, fsType)
			mounttest.Run(t, mounttest.Harness{
				Interface: mount.System{}, Node: disk, FSType: string(fsType), Device: device, Size: size,
				Busy: func(t *testing.T, path string) func() {
					f := must.Get(os.Open(path))(t)
					return func() { f.Close() }
				},
				Freeze: func(t *testing.T, path string) {
					const fiFreeze = 0xc0045877
					f := must.Get(os.Open(path))(t)
					defer f.Close()
					must.Succeed(t, unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0))
				},
			})
		})
	}
}

// The propagated copy of a read-only layer must be read-only too, which a
// remount cannot do.
func TestReadOnlyReachesOtherNamespaces(t *testing.T) {
	formatDisk(t, filesystem.Ext4)
	system := mount.System{}
	ours, peer, source := t.TempDir(), t.TempDir(), t.TempDir()
	must.Succeed(t, unix.Mount("tmpfs", ours, "tmpfs", 0, ""))
	must.Succeed(t, unix.Mount("", ours, "", unix.MS_SHARED, ""))
	must.Succeed(t, unix.Mount(ours, peer, "", unix.MS_BIND, ""))
	must.Succeed(t, system.Mount(mount.Source{Node: disk}, source, "ext4", nil))
	t.Cleanup(func() {
		for _, path := range []string{filepath.Join(ours, "target"), source, peer, ours} {
			if err := system.Unmount(path); err != nil {
				t.Error(err)
			}
		}
	})
	must.Succeed(t, os.Mkdir(filepath.Join(ours, "target"), 0o700))
	must.Succeed(t, system.Bind(source, filepath.Join(ours, "target"), true))
	at, err := system.At(filepath.Join(peer, "target"))
	if err != nil || !at.Mounted || !at.ReadOnly {
		t.Errorf("the peer sees %+v, %v", at, err)
	}
	if err := os.WriteFile(filepath.Join(peer, "target", "file"), nil, 0o600); err == nil {
		t.Error("the peer can write")
	}
}

// TestHolders mounts the disk in two other namespaces: one receives our
// unmounts, as the host does, the other has captured the mount.
func TestHolders(t *testing.T) {
	for _, fsType := range []filesystem.Type{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs} {
		t.Run(string(fsType), func(t *testing.T) {
			device, _ := formatDisk(t, fsType)
			system, shared := mount.System{}, t.TempDir()
			must.Succeed(t, unix.Mount("tmpfs", shared, "tmpfs", 0, ""))
			t.Cleanup(func() { must.Succeed(t, system.Unmount(shared)) })
			must.Succeed(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
			at := filepath.Join(shared, "volume")
			must.Succeed(t, os.Mkdir(at, 0o700))
			if inUse, err := system.InUse(device); inUse || err != nil {
				t.Errorf("before it is mounted: %t, %v", inUse, err)
			}
			must.Succeed(t, system.Mount(mount.Source{Node: disk}, at, string(fsType), nil))
			host, captor := mounttest.Elsewhere(t, false), mounttest.Elsewhere(t, true)

			if got := pids(must.Get(system.Holders(device, ""))(t)); !slices.Equal(got, sorted(host.Pid, captor.Pid)) {
				t.Errorf("it is held by %v, want %d and %d", got, host.Pid, captor.Pid)
			}
			left := must.Get(system.Holders(device, at))(t)
			if got := pids(left); !slices.Equal(got, []int{captor.Pid}) {
				t.Fatalf("it stays with %v, want %d", left, captor.Pid)
			}
			if left[0].Process != "cat" || left[0].Path != at {
				t.Errorf("the holder is %v", left[0])
			}
			must.Succeed(t, system.Unmount(at))
			if got := pids(must.Get(system.Holders(device, ""))(t)); !slices.Equal(got, []int{captor.Pid}) {
				t.Errorf("unmounted, it is held by %v, want %d", got, captor.Pid)
			}
			if inUse, err := system.InUse(device); !inUse || err != nil {
				t.Errorf("with a holder it is in use: %t, %v", inUse, err)
			}
			must.Succeed(t, captor.Kill())
			waittest.Until(t, "the file system is free", func() bool {
				inUse, err := system.InUse(device)
				return !inUse && err == nil
			})
		})
	}
}

func pids(holders []mount.Holder) []int {
	var all []int
	for _, h := range holders {
		all = append(all, h.PID)
	}
	return sorted(all...)
}

func sorted(numbers ...int) []int {
	slices.Sort(numbers)
	return numbers
}

// A node plugin may have single directories of the kubelet, each a mount of its
// own.
func TestTheTrustedDirectoryMayHoldMounts(t *testing.T) {
	device, _ := formatDisk(t, filesystem.Ext4)
	trusted := t.TempDir()
	system := mount.System{Trusted: trusted}
	pods, csi := filepath.Join(trusted, "pods"), filepath.Join(trusted, "csi")
	for dir, kind := range map[string]uintptr{pods: unix.MS_SHARED, csi: unix.MS_PRIVATE} {
		must.Succeed(t, os.Mkdir(dir, 0o700))
		must.Succeed(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		t.Cleanup(func() { must.Succeed(t, unix.Unmount(dir, 0)) })
		must.Succeed(t, unix.Mount("", dir, "", kind, ""))
	}
	must.Succeed(t, mount.CheckShared(filepath.Join(pods, "any")))
	if err := mount.CheckShared(csi); err == nil || !strings.Contains(err.Error(), "private") {
		t.Errorf("a private mount: %v", err)
	}
	staged, published := filepath.Join(csi, "staged"), filepath.Join(pods, "published")
	must.Succeed(t, nofollow.Mkdir(trusted, staged, 0o700))
	must.Succeed(t, nofollow.Mkdir(trusted, published, 0o700))
	must.Succeed(t, system.Mount(mount.Source{Node: disk}, staged, "ext4", nil))
	must.Succeed(t, system.Bind(staged, published, true))
	if at, err := system.At(published); err != nil || at != (mount.State{Mounted: true, Device: device, ReadOnly: true}) {
		t.Errorf("published is %+v, %v", at, err)
	}
	for _, path := range []string{published, staged} {
		must.Succeed(t, system.Unmount(path))
		must.Succeed(t, nofollow.Remove(trusted, path))
	}
}
