//go:build kernel

package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func fsfreeze(path string, request uint) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// thawAtEnd thaws leftovers of a failed test, which would block all cleanup.
func (r *real) thawAtEnd(device mount.Device, path, fsType string) {
	r.t.Cleanup(func() {
		if inUse, err := r.machine.Mounts.InUse(device); err != nil || !inUse || !r.t.Failed() {
			return
		}
		dir := r.t.TempDir()
		if err := unix.Mount(path, dir, fsType, 0, ""); err != nil {
			r.t.Error(err)
			return
		}
		_ = fsfreeze(dir, fiThaw)
		if err := unix.Unmount(dir, 0); err != nil {
			r.t.Error(err)
		}
	})
}

func (r *real) wantWrites(path string) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(path, []byte("two"), 0o600) }()
	waittest.Until(r.t, "a write to "+path+" ends", func() bool { return len(done) > 0 })
	must.Succeed(r.t, <-done)
}

// TestRealFrozenFileSystem leaves a file system frozen, as a Pod's backup hook
// that is killed halfway.
func TestRealFrozenFileSystem(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.published("frozen"+fsType, fsType, "one", "two")
			r.thawAtEnd(deviceOf(v), v.GetDevicePath(), fsType)
			r.write(filepath.Join(r.target(v, "one"), "file"), "one")
			must.Succeed(t, fsfreeze(r.target(v, "one"), fiFreeze))

			// It stays frozen while a Pod uses it, whatever the kubelet does.
			must.Succeed(t, r.unpublish(v, "one"))
			must.Succeed(t, r.stage(v, filesystemAccess(multi)))
			if err := fsfreeze(r.target(v, "two"), fiThaw); err != nil {
				t.Errorf("a file system that is in use was thawed: %v", err)
			}
			must.Succeed(t, fsfreeze(r.target(v, "two"), fiFreeze))

			must.Succeed(t, r.unpublish(v, "two"))
			must.Succeed(t, r.unstage(v))
			if inUse := must.Get(r.machine.Mounts.InUse(deviceOf(v)))(t); inUse {
				t.Fatal("the kernel has the file system still after it was unmounted")
			}
			must.Succeed(t, r.stage(v, filesystemAccess(multi)))
			r.wantWrites(filepath.Join(r.staging(v), "file"))
			must.Succeed(t, r.unstage(v))
			r.delete(v)
			r.waitForSpace()
		})
	}
}

// The frozen file system has no mount left.
func TestRealFrozenFileSystemIsStaged(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.published("frozen"+fsType, fsType)
			r.thawAtEnd(deviceOf(v), v.GetDevicePath(), fsType)
			must.Succeed(t, fsfreeze(r.staging(v), fiFreeze))
			must.Succeed(t, unix.Unmount(r.staging(v), 0))
			if inUse := must.Get(r.machine.Mounts.InUse(deviceOf(v)))(t); !inUse {
				t.Fatal("the kernel forgot a frozen file system when it was unmounted")
			}
			must.Succeed(t, r.stage(v, filesystemAccess(multi)))
			r.wantWrites(filepath.Join(r.staging(v), "file"))
			must.Succeed(t, r.unstage(v))
			r.delete(v)
			r.waitForSpace()
		})
	}
}

// A frozen file system keeps its mapping open in the kernel: the volume could
// be neither locked nor deleted.
func TestRealFrozenFileSystemOfAnEncryptedVolume(t *testing.T) {
	r := newRealLUKS(t)
	for name, kind := range map[string]struct {
		make func() *lvmdv1.Volume
		// device and path are the mapping's, once the volume is staged.
		device func(*lvmdv1.Volume) mount.Device
		path   func(*lvmdv1.Volume) string
	}{
		"a kept key": {func() *lvmdv1.Volume { return r.locked("frozen-kept", "ext4") }, r.mapping,
			func(v *lvmdv1.Volume) string { return luks.Path(v.GetId()) }},
		"an ephemeral key": {func() *lvmdv1.Volume { return r.sealed("ext4", r.size) }, deviceOf, (*lvmdv1.Volume).GetDevicePath},
	} {
		t.Run(name, func(t *testing.T) {
			v := kind.make()
			access := filesystemAccess(multi)
			must.Succeed(t, r.stage(v, access))
			device := kind.device(v)
			r.thawAtEnd(device, kind.path(v), v.GetFsType())
			for _, pod := range []string{"one", "two"} {
				must.Succeed(t, r.publish(v, pod, access, false))
			}
			r.write(filepath.Join(r.target(v, "one"), "file"), "one")
			must.Succeed(t, fsfreeze(r.target(v, "one"), fiFreeze))
			must.Succeed(t, r.unpublish(v, "one"))
			must.Succeed(t, r.stage(v, access))
			if err := fsfreeze(r.target(v, "two"), fiThaw); err != nil {
				t.Errorf("a file system that is in use was thawed: %v", err)
			}
			must.Succeed(t, fsfreeze(r.target(v, "two"), fiFreeze))
			must.Succeed(t, r.unpublish(v, "two"))
			must.Succeed(t, r.unstage(v))
			r.wantLocked(v)

			must.Succeed(t, r.stage(v, access))
			r.wantFile(filepath.Join(r.staging(v), "file"), "one")
			must.Succeed(t, fsfreeze(r.staging(v), fiFreeze))
			must.Succeed(t, unix.Unmount(r.staging(v), 0))
			if inUse := must.Get(r.machine.Mounts.InUse(kind.device(v)))(t); !inUse {
				t.Fatal("the kernel forgot a frozen file system when it was unmounted")
			}
			must.Succeed(t, r.stage(v, access))
			r.wantWrites(filepath.Join(r.staging(v), "file"))
			must.Succeed(t, r.unstage(v))
			r.wantLocked(v)
			r.delete(v)
			r.waitForSpace()
		})
	}
}
