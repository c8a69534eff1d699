//go:build kernel

package driver_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
)

func (r *real) owned(name, fsType string, changes ...func(*lvmdv1.CreateVolumeRequest)) *lvmdv1.Volume {
	r.t.Helper()
	request := &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: r.size, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: fsType,
		FsSettings: map[string]string{"root-owner": "1000:2000", "root-mode": "3770"}}
	for _, change := range changes {
		change(request)
	}
	return must.Get(r.machine.LVMD.CreateVolume(r.ctx(), request))(r.t).GetVolume()
}

func (r *real) byHand(v *lvmdv1.Volume, do func(root string) error) {
	r.t.Helper()
	must.Succeed(r.t, r.machine.Mounts.Mount(mount.Source{Node: v.GetDevicePath()}, r.staging(v), v.GetFsType(), nil))
	must.Succeed(r.t, errors.Join(do(r.staging(v)), r.machine.Mounts.Unmount(r.staging(v))))
}

// givenAway is the state left by a run killed before the mark.
func givenAway(root string) error {
	return errors.Join(unix.Chmod(root, 0o3770), unix.Chown(root, 1000, 2000))
}

const asked = "1000:2000 3770"

func (r *real) wantRoot(path, want string) {
	r.t.Helper()
	var st unix.Stat_t
	must.Succeed(r.t, unix.Stat(path, &st))
	if got := fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777); got != want {
		r.t.Errorf("the root directory at %s is %s, want %s", path, got, want)
	}
}

// TestRealRootDirectory sets owner and mode of a new file system's root
// directory. Later changes by its user stay.
func TestRealRootDirectory(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	access := filesystemAccess(writer)
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			r.t = t
			v := r.owned(fsType, fsType)
			r.deleteLater(v)
			for range 2 {
				must.Succeed(t, r.stage(v, access))
				must.Succeed(t, r.publish(v, "one", access, false))
				r.wantRoot(r.target(v, "one"), asked)
			}
			// The user restores the default.
			must.Succeed(t, errors.Join(os.Chown(r.target(v, "one"), 0, 0), os.Chmod(r.target(v, "one"), 0o755)))
			must.Succeed(t, r.stage(v, access))
			r.wantRoot(r.target(v, "one"), "0:0 0755")
			must.Succeed(t, errors.Join(r.unpublish(v, "one"), r.unstage(v)))
			r.restart()
			must.Succeed(t, r.stage(v, access))
			r.wantRoot(r.staging(v), "0:0 0755")
			must.Succeed(t, r.unstage(v))
		})
	}
}

// TestRealRootDirectoryOfAKilledRun leaves a root directory as a run killed at
// each point does, with the file system mounted or, after a crash of the node,
// not.
func TestRealRootDirectoryOfAKilledRun(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 64 * mib
	for name, kill := range map[string]func(path string) error{
		"before anything": func(string) error { return nil },
		"after the mode":  func(path string) error { return unix.Chmod(path, 0o3770) },
		"after the owner": givenAway,
	} {
		for _, mounted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mounted %t", name, mounted), func(t *testing.T) {
				r.t = t
				v := r.owned("killed", "ext4")
				r.deleteLater(v)
				r.byHand(v, kill)
				if mounted {
					must.Succeed(t, r.machine.Mounts.Mount(mount.Source{Node: v.GetDevicePath()}, r.staging(v), "ext4", nil))
				}
				must.Succeed(t, r.stage(v, filesystemAccess(writer)))
				r.wantRoot(r.staging(v), asked)
				must.Succeed(t, r.unstage(v))
			})
		}
	}
}

// The plugin may set a root directory's mode but not its owner.
func TestRealRootDirectoryOfARunThatFailed(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.owned("a", "ext4")
	r.deleteLater(v)
	failing := reducedPlugin(t, r.machine, slices.DeleteFunc(slices.Clone(driver.Capabilities), func(c int) bool { return c == unix.CAP_CHOWN }))
	wantError(t, failing.stage(v, filesystemAccess(writer)), codes.Internal, "operation not permitted")
	r.wantLayers(0)
	must.Succeed(t, r.stage(v, filesystemAccess(writer)))
	r.wantRoot(r.staging(v), asked)
	must.Succeed(t, r.unstage(v))
}

// Volumes not made by mkfs in lvmd alone, or used in unusual ways.
func TestRealRootDirectoriesOfOtherVolumes(t *testing.T) {
	r := newRealInline(t, "/dev/vdb", "disk")
	r.size = 64 * mib
	access := filesystemAccess(writer)
	run := func(name string, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { r.t = t; do(t) })
	}
	run("used before, as one that was formatted by hand", func(t *testing.T) {
		v := r.owned("used", "ext4")
		r.deleteLater(v)
		r.byHand(v, func(root string) error { return os.WriteFile(filepath.Join(root, "file"), nil, 0o600) })
		must.Succeed(t, r.stage(v, access))
		r.wantRoot(r.staging(v), "0:0 0755")
		must.Succeed(t, r.unstage(v))
	})
	run("read-only first", func(t *testing.T) {
		v := r.owned("reader", "ext4")
		r.deleteLater(v)
		must.Succeed(t, r.stage(v, filesystemAccess(reader)))
		r.wantRoot(r.staging(v), "0:0 0755")
		must.Succeed(t, errors.Join(r.unstage(v), r.stage(v, access)))
		r.wantRoot(r.staging(v), asked)
		must.Succeed(t, r.unstage(v))
	})
	run("a clone has its source's", func(t *testing.T) {
		source := r.owned("source", "ext4")
		r.deleteLater(source)
		must.Succeed(t, errors.Join(r.stage(source, access), os.Chmod(r.staging(source), 0o711), r.unstage(source)))
		unused := r.owned("unused", "ext4")
		r.deleteLater(unused)
		for name, from := range map[string]*lvmdv1.Volume{"clone": source, "clone-of-unused": unused} {
			clone := r.owned(name, "ext4", func(c *lvmdv1.CreateVolumeRequest) { c.Source = &lvmdv1.VolumeSource{VolumeId: from.GetId()} })
			r.deleteLater(clone)
			must.Succeed(t, r.stage(clone, access))
			r.wantRoot(r.staging(clone), map[string]string{"clone": "1000:2000 0711", "clone-of-unused": "0:0 0755"}[name])
			must.Succeed(t, r.unstage(clone))
		}
	})
	run("scratch that is reformatted", func(t *testing.T) {
		v := r.owned("scratch", "ext4", func(c *lvmdv1.CreateVolumeRequest) { c.Profile = "scratch" })
		r.deleteLater(v)
		must.Succeed(t, errors.Join(r.stage(v, access), os.Chmod(r.staging(v), 0o700)))
		r.write(filepath.Join(r.staging(v), "file"), "content")
		revive := r.kill(v)
		must.Succeed(t, r.unstage(v))
		revive()
		must.Succeed(t, r.stage(v, access))
		r.wantRoot(r.staging(v), asked)
		must.Succeed(t, r.unstage(v))
	})
	run("encrypted by its user", func(t *testing.T) {
		r.secrets = map[string]string{"key": "hunter2"}
		v := r.owned("luks", "ext4", func(c *lvmdv1.CreateVolumeRequest) { c.Encryption = "luks" })
		r.deleteLater(v)
		must.Succeed(t, r.stage(v, access))
		r.wantRoot(r.staging(v), asked)
		must.Succeed(t, r.unstage(v))
	})
	run("inline", func(t *testing.T) {
		i := r.inline("pod", "ext4").with("carve.csi.local/mkfs-root-mode", "1777")
		must.Succeed(t, r.publishInline(i))
		r.wantRoot(r.inlineTarget(i), "0:0 1777")
		must.Succeed(t, r.unpublishInline(i))
	})
}
