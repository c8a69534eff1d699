//go:build kernel

package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
)

// newShared is newReal with mounts in the kubelet's directory that propagate,
// as on a node.
func newShared(t testing.TB) *real {
	t.Helper()
	r := newReal(t, "/dev/vdb", "disk")
	share(t, r.machine.KubeletDir, "", unix.MS_BIND)
	return r
}

// share mounts a file system at dir and makes that mount shared, until the test
// ends.
func share(t testing.TB, dir, fsType string, flags uintptr) {
	t.Helper()
	must.Succeed(t, unix.Mount(dir, dir, fsType, flags, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	// Without a private parent mount everything would be mounted twice.
	must.Succeed(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	must.Succeed(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
}

func mountMemory(t testing.TB, dir string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(dir, 0o750))
	must.Succeed(t, unix.Mount("none", dir, "tmpfs", 0, ""))
}

func (r *real) published(name, fsType string, pods ...string) *lvmdv1.Volume {
	r.t.Helper()
	v := r.volume(name, fsType)
	must.Succeed(r.t, r.stage(v, filesystemAccess(multi)))
	for _, pod := range pods {
		must.Succeed(r.t, r.publish(v, pod, filesystemAccess(multi), false))
	}
	return v
}

// TestRealMountsBelowATarget leaves mounts in a volume, as a Pod with
// Bidirectional mount propagation does: its termination log and its own mounts.
func TestRealMountsBelowATarget(t *testing.T) {
	r := newShared(t)
	log := filepath.Join(t.TempDir(), "log")
	must.Succeed(t, os.WriteFile(log, []byte("last words"), 0o600))
	for name, mounts := range map[string]func(target string){
		"a file": func(target string) {
			must.Succeed(t, os.WriteFile(filepath.Join(target, "log.txt"), nil, 0o600))
			must.Succeed(t, unix.Mount(log, filepath.Join(target, "log.txt"), "", unix.MS_BIND, ""))
		},
		"one in another": func(target string) {
			mountMemory(t, filepath.Join(target, "with space"))
			mountMemory(t, filepath.Join(target, "with space", "deeper"))
			mountMemory(t, filepath.Join(target, "z"))
		},
		"one that hides another": func(target string) {
			mountMemory(t, filepath.Join(target, "a", "b"))
			mountMemory(t, filepath.Join(target, "a"))
			mountMemory(t, filepath.Join(target, "a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := r.published("below", "ext4", "pod")
			mounts(r.target(v, "pod"))
			must.Succeed(t, r.unpublish(v, "pod"))
			must.Succeed(t, r.unstage(v))
			r.wantLayers(0)
			if _, err := os.Lstat(r.target(v, "pod")); !os.IsNotExist(err) {
				t.Errorf("the target path is left: %v", err)
			}
			r.wantFile(log, "last words")
			r.delete(v)
			r.waitForSpace()
		})
	}
}

// TestRealMountsBelowTargetsOfTwoPods has two Pods that see each other's mounts
// in their volume. Those of the running Pod must stay.
func TestRealMountsBelowTargetsOfTwoPods(t *testing.T) {
	r := newShared(t)
	v := r.published("below", "ext4", "one", "two")
	mountMemory(t, filepath.Join(r.target(v, "two"), "sub"))
	seen := filepath.Join(r.target(v, "one"), "sub")
	if at := must.Get(r.machine.Mounts.At(seen))(t); !at.Mounted {
		t.Fatal("what is mounted in one of the targets is not seen in the other")
	}
	wantError(t, r.unpublish(v, "one"), codes.FailedPrecondition, seen)
	if at := must.Get(r.machine.Mounts.At(filepath.Join(r.target(v, "two"), "sub")))(t); !at.Mounted {
		t.Error("a mount of a Pod that runs was unmounted")
	}
	must.Succeed(t, r.unpublish(v, "two"))
	must.Succeed(t, r.unpublish(v, "one"))
	must.Succeed(t, r.unstage(v))
	r.wantLayers(0)
	r.delete(v)
	r.waitForSpace()
}

func TestRealMountsBelowATargetThatAreLeft(t *testing.T) {
	r := newShared(t)
	v := r.published("below", "ext4", "pod")
	target := r.target(v, "pod")

	// A host directory bound recursively: an unmount in either is an unmount in
	// both.
	host := t.TempDir()
	share(t, host, "tmpfs", 0)
	mountMemory(t, filepath.Join(host, "precious"))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(host, "precious"), unix.MNT_DETACH) })
	below := filepath.Join(target, "host")
	must.Succeed(t, os.Mkdir(below, 0o750))
	must.Succeed(t, unix.Mount(host, below, "", unix.MS_BIND|unix.MS_REC, ""))
	wantError(t, r.unpublish(v, "pod"), codes.FailedPrecondition, filepath.Join(below, "precious"))
	if at := must.Get(r.machine.Mounts.At(filepath.Join(host, "precious")))(t); !at.Mounted {
		t.Fatal("a mount of the host was unmounted")
	}
	r.wantAt(target, mount.State{Mounted: true, Device: deviceOf(v)})
	byHand := func(below string) {
		must.Succeed(t, unix.Mount("", below, "", unix.MS_PRIVATE|unix.MS_REC, ""))
		must.Succeed(t, unix.Unmount(filepath.Join(below, "precious"), 0))
	}
	byHand(below)

	// Now the directory can be unmounted, unless a process uses it.
	user := must.Get(os.Open(below))(t)
	defer user.Close()
	wantError(t, r.unpublish(v, "pod"), codes.FailedPrecondition, below)
	user.Close()
	must.Succeed(t, r.unpublish(v, "pod"))

	// The staging path has a copy.
	below = filepath.Join(r.staging(v), "host")
	wantError(t, r.unstage(v), codes.FailedPrecondition, filepath.Join(below, "precious"))
	byHand(below)
	must.Succeed(t, r.unstage(v))
	if at := must.Get(r.machine.Mounts.At(filepath.Join(host, "precious")))(t); !at.Mounted {
		t.Error("a mount of the host was unmounted")
	}
	r.delete(v)
	r.waitForSpace()
}
