package driver_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

func TestPublishBindsOnce(t *testing.T) {
	tests := []struct {
		name     string
		fsType   string
		staged   *csi.VolumeCapability
		readOnly bool
		want     mount.State
	}{
		{name: "a file system", fsType: "ext4", staged: filesystemAccess(writer)},
		{name: "a file system read-only", fsType: "xfs", staged: filesystemAccess(writer), readOnly: true,
			want: mount.State{ReadOnly: true}},
		{name: "a file system staged read-only", fsType: "ext4", staged: filesystemAccess(reader),
			want: mount.State{ReadOnly: true}},
		{name: "a raw block volume", staged: blockAccess(writer),
			want: mount.State{Node: true}},
		{name: "a raw block volume read-only", staged: blockAccess(writer), readOnly: true,
			want: mount.State{Node: true, ReadOnly: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", tt.fsType)
			must.Succeed(f.t, f.stage(v, tt.staged))
			staged, _ := f.layers()
			for range 3 {
				must.Succeed(f.t, f.publish(v, "pod", tt.staged, tt.readOnly))
			}
			f.wantLayers(len(staged) + 1)
			tt.want.Mounted, tt.want.Device = true, deviceOf(v)
			f.wantAt(f.target(v, "pod"), tt.want)
			for range 3 {
				must.Succeed(f.t, f.unpublish(v, "pod"))
			}
			f.wantLayers(len(staged))
			f.wantGone(f.target(v, "pod"))
			must.Succeed(f.t, f.unstage(v))
			f.wantLayers(0)
		})
	}
}

func (f *kubelet) wantGone(path string) {
	f.t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		f.t.Errorf("%s is still there: %v", path, err)
	}
}

func TestPublishToSeveralPods(t *testing.T) {
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{writer, multi} {
		t.Run("a shared volume can be in use twice: "+mode.String(), func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", "ext4")
			must.Succeed(f.t, f.stage(v, filesystemAccess(mode)))
			must.Succeed(f.t, f.publish(v, "one", filesystemAccess(mode), false))
			must.Succeed(f.t, f.publish(v, "two", filesystemAccess(mode), true))
			f.wantLayers(3)
			must.Succeed(f.t, f.unpublish(v, "one"))
			f.wantAt(f.target(v, "two"), mount.State{Mounted: true, Device: deviceOf(v), ReadOnly: true})
		})
	}
	for name, c := range map[string]*csi.VolumeCapability{"file system": filesystemAccess(single), "raw block": blockAccess(single)} {
		t.Run("a volume for one Pod is refused to a second: "+name, func(t *testing.T) {
			f := newFixture(t)
			fsType := "ext4"
			if c.GetBlock() != nil {
				fsType = ""
			}
			v := f.volume("a", fsType)
			must.Succeed(f.t, f.stage(v, c))
			must.Succeed(f.t, f.publish(v, "one", c, false))
			must.Succeed(f.t, f.publish(v, "one", c, false))
			before, _ := f.layers()
			wantError(t, f.publish(v, "two", c, false), codes.FailedPrecondition, f.target(v, "one"))
			f.wantLayers(len(before))
			f.wantGone(f.target(v, "two"))
			must.Succeed(f.t, f.unpublish(v, "one"))
			must.Succeed(f.t, f.publish(v, "two", c, false))
		})
	}
}

func TestPublishRefusesWhatDoesNotFit(t *testing.T) {
	t.Run("a volume that is not staged", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), false), codes.FailedPrecondition, "not staged")
		f.wantGone(f.target(v, "pod"))
	})
	t.Run("another access than what is published there", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), true), codes.AlreadyExists, "read-only false already, true was asked for")
		f.wantLayers(2)
	})
	t.Run("a target that shows another volume", func(t *testing.T) {
		f := newFixture(t)
		v, other := f.volume("a", "ext4"), f.volume("b", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: other.GetDevicePath()}, f.machine.MakeDir("pods", "pod", "volumes", "kubernetes.io~csi", v.GetId(), "mount"), "ext4", nil))
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), false), codes.FailedPrecondition, "is taken")
		f.wantLayers(2)
	})
	t.Run("a target that is a file", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, os.WriteFile(f.target(v, "pod"), nil, 0o600))
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), false), codes.FailedPrecondition, "exists and is a file")
	})
	t.Run("a target of raw block that is a directory", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "")
		must.Succeed(f.t, os.Mkdir(f.target(v, "pod"), 0o750))
		wantError(t, f.publish(v, "pod", blockAccess(writer), false), codes.FailedPrecondition, "exists and is a directory")
	})
	t.Run("a target that is a symbolic link", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, os.Symlink("/etc", f.target(v, "pod")))
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), false), codes.FailedPrecondition, "exists and is a symbolic link")
		f.wantLayers(1)
	})
	t.Run("a failed bind leaves nothing", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.FailMounts(syscall.ENOMEM)
		wantError(t, f.publish(v, "pod", filesystemAccess(writer), false), codes.Internal, "cannot allocate memory")
		f.wantGone(f.target(v, "pod"))
		f.mounts.FailMounts(nil)
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
	})
}

func TestPublishHealsAFileSystemThatFailed(t *testing.T) {
	dirty := filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true}
	for name, fail := range map[string]func(*fixture, *lvmdv1.Volume){
		"it fails": func(f *fixture, v *lvmdv1.Volume) {
			f.mounts.Kill(deviceOf(v))
			f.mounts.Revive(deviceOf(v))
		},
		"it is read-only": func(f *fixture, v *lvmdv1.Volume) { f.mounts.TurnReadOnly(deviceOf(v)) },
		"it has errors": func(f *fixture, v *lvmdv1.Volume) {
			f.mounts.SetErrors(deviceOf(v), 3)
			f.fileSystems.Checking = func(context.Context, string) error {
				f.mounts.SetErrors(deviceOf(v), 0)
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", "ext4")
			must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
			must.Succeed(f.t, f.publish(v, "one", filesystemAccess(writer), false))
			f.fileSystems.Set(v.GetDevicePath(), dirty)
			fail(f, v)
			wantError(t, f.publish(v, "two", filesystemAccess(writer), false), codes.FailedPrecondition, "no longer in use at "+f.target(v, "one"))
			f.wantLayers(2)
			f.wantGone(f.target(v, "two"))
			must.Succeed(f.t, f.unpublish(v, "one"))
			must.Succeed(f.t, f.publish(v, "two", filesystemAccess(writer), false))
			f.wantLayers(2)
			f.wantAt(f.target(v, "two"), mount.State{Mounted: true, Device: deviceOf(v)})
			if n := f.fileSystems.Checks(v.GetDevicePath()); n != 1 {
				t.Errorf("checked %d times", n)
			}
		})
	}
}

func TestPublishOfAFileSystemNeedsNoLVMD(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	f.machine.StopLVMD()
	must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
	must.Succeed(f.t, f.unpublish(v, "pod"))
}

func TestUnpublishOfADeadVolume(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
	f.mounts.Kill(deviceOf(v))
	f.machine.StopLVMD()
	must.Succeed(f.t, f.unpublish(v, "pod"))
	must.Succeed(f.t, f.unstage(v))
	f.wantLayers(0)
}

func TestUnpublishKeepsWhatWasWrittenBesideTheVolume(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	file := filepath.Join(f.target(v, "pod"), "file")
	must.Succeed(f.t, os.Mkdir(filepath.Dir(file), 0o750))
	must.Succeed(f.t, os.WriteFile(file, []byte("data"), 0o600))
	wantError(t, f.unpublish(v, "pod"), codes.FailedPrecondition, `"file", written while the volume was not mounted`)
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	found := f.CheckHealth(f.ctx(), driver.Conditions{})
	if message := found[v.GetId()][driver.ReasonUnmountFails]; !strings.Contains(message, "Pod pod ") || !strings.Contains(message, `"file"`) {
		t.Errorf("the health of the volume is %q, want the Pod and the file named", found)
	}
	// The controller learns of it from lvmd and writes the Event.
	if noted := f.listed()[0].GetFound(); len(noted) != 1 || noted[0].GetType() != driver.ReasonUnmountFails || noted[0].GetMessage() != found[v.GetId()][driver.ReasonUnmountFails] {
		t.Errorf("noted is %v, found was %q", noted, found)
	}
	must.Succeed(t, os.Remove(file))
	must.Succeed(t, f.unpublish(v, "pod"))
	if found := f.CheckHealth(f.ctx(), found); len(found) > 0 || len(f.listed()[0].GetFound()) > 0 {
		t.Errorf("unpublished, the health of the volumes is %q, noted is %v", found, f.listed()[0].GetFound())
	}
}

func TestUnpublishNeverFollowsALink(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	precious := f.machine.MakeDir("precious")
	must.Succeed(f.t, os.Symlink(precious, f.target(v, "pod")))
	must.Succeed(f.t, f.unpublish(v, "pod"))
	f.wantGone(f.target(v, "pod"))
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}
