package driver_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

func (f *kubelet) scratch(name string) *lvmdv1.Volume {
	f.t.Helper()
	got := must.Get(f.machine.LVMD.CreateVolume(context.Background(), &lvmdv1.CreateVolumeRequest{
		Name: name, RequiredBytes: f.size, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		Profile: string(filesystem.Scratch), FsSettings: map[string]string{"label": "scratch"},
	}))(f.t)
	return got.GetVolume()
}

func TestScratchFileSystems(t *testing.T) {
	t.Run("are mounted with what makes them fast, which the class may undo", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer, "barrier=1")))
		points, _ := f.mounts.Below(f.machine.KubeletDir)
		if got := strings.Join(points[0].FSOptions, ","); got != "rw,data=writeback,commit=300,noinit_itable,noatime,nobarrier,noauto_da_alloc,barrier=1" {
			t.Errorf("options %q", got)
		}
	})
	t.Run("that were made before they had journals are mounted without options of one", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		old := filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), SizeBytes: v.GetSizeBytes()}
		f.fileSystems.Set(v.GetDevicePath(), old)
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		points, _ := f.mounts.Below(f.machine.KubeletDir)
		if got := strings.Join(points[0].FSOptions, ","); got != "rw,noatime,nobarrier,noauto_da_alloc" {
			t.Errorf("options %q", got)
		}
		must.Succeed(f.t, f.unstage(v))
		// Reformatting adds a journal.
		old.NeedsCheck = true
		f.fileSystems.Set(v.GetDevicePath(), old)
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		points, _ = f.mounts.Below(f.machine.KubeletDir)
		if got := points[0].FSOptions; !slices.Contains(got, "data=writeback") {
			t.Errorf("reformatted: options %q", got)
		}
	})
	t.Run("that were unmounted cleanly are left as they are", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		for range 2 {
			must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
			must.Succeed(f.t, f.unstage(v))
		}
		if made := f.fileSystems.Made(v.GetDevicePath()); len(made) != 0 {
			t.Errorf("reformatted: %+v", made)
		}
	})
	t.Run("that were not are reformatted as they were formatted first, and the log says so", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), NeedsCheck: true})
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		want := filesystem.FormatOptions{Type: filesystem.Ext4, UUID: v.GetFsUuid(), Profile: filesystem.Scratch, Settings: "label=scratch"}
		if made := f.fileSystems.Made(v.GetDevicePath()); !slices.Equal(made, []filesystem.FormatOptions{want}) {
			t.Errorf("got %+v", made)
		}
		if f.fileSystems.Checks(v.GetDevicePath()) != 0 || !strings.Contains(f.machine.Log.String(), "reformatted a scratch file system") {
			t.Errorf("it was checked, or the log does not say: %s", f.machine.Log)
		}
	})
	t.Run("whose reformatting was interrupted are reformatted again", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), NeedsCheck: true})
		f.fileSystems.Checking = func(context.Context, string) error {
			f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{})
			return errors.New("killed")
		}
		wantError(t, f.stage(v, filesystemAccess(writer)), codes.Internal, "reformat its scratch file system: killed")
		f.wantLayers(0)
		f.fileSystems.Checking = nil
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.wantLayers(1)
	})
	t.Run("that are mounted are not reformatted below their users", func(t *testing.T) {
		f := newFixture(t)
		v := f.scratch("a")
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), NeedsCheck: true})
		must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, f.machine.MakeDir("leaked"), "ext4", nil))
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		if made := f.fileSystems.Made(v.GetDevicePath()); len(made) != 0 {
			t.Errorf("reformatted: %+v", made)
		}
	})
	t.Run("that are foreign are never reformatted", func(t *testing.T) {
		for name, info := range map[string]filesystem.Info{
			"another type": {Type: filesystem.XFS, UUID: "01234567-89ab-cdef-0123-456789abcdef"},
			"another UUID": {Type: filesystem.Ext4, UUID: "01234567-89ab-cdef-0123-456789abcdef", NeedsCheck: true},
		} {
			f := newFixture(t)
			v := f.scratch("a")
			f.fileSystems.Set(v.GetDevicePath(), info)
			wantError(t, f.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "carries")
			if made := f.fileSystems.Made(v.GetDevicePath()); len(made) != 0 {
				t.Errorf("%s: reformatted: %+v", name, made)
			}
		}
	})
}
