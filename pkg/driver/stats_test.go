package driver_test

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/must"
)

func TestStats(t *testing.T) {
	t.Run("of a file system are bytes and inodes", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
		f.machine.StopLVMD()
		for _, path := range []string{f.staging(v), f.target(v, "pod")} {
			got := must.Get(f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: path}))(f.t)
			bytes, inodes := got.GetUsage()[0], got.GetUsage()[1]
			if bytes.GetUnit() != csi.VolumeUsage_BYTES || bytes.GetTotal() != gib || bytes.GetUsed() != gib/4 || bytes.GetAvailable() != gib/4*3 {
				t.Errorf("got %v", bytes)
			}
			if inodes.GetUnit() != csi.VolumeUsage_INODES || inodes.GetTotal() == 0 || inodes.GetUsed()+inodes.GetAvailable() != inodes.GetTotal() {
				t.Errorf("got %v", inodes)
			}
		}
	})
	t.Run("of a raw block volume are its size", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "")
		must.Succeed(f.t, f.publish(v, "pod", blockAccess(writer), false))
		got := must.Get(f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: f.target(v, "pod")}))(f.t)
		if u := got.GetUsage(); len(u) != 1 || u[0].GetTotal() != gib || u[0].GetUnit() != csi.VolumeUsage_BYTES {
			t.Errorf("got %v", u)
		}
	})
	t.Run("of a dead volume are an error", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.Kill(deviceOf(v))
		_, err := f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: f.staging(v)})
		wantError(t, err, codes.Internal, "does not answer")
	})
	t.Run("of a path that shows no volume are not found", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		for _, path := range []string{"some/path", "/proc", f.staging(v), f.target(v, "pod")} {
			_, err := f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: path})
			wantError(t, err, codes.NotFound, "neither staged nor published")
		}
	})
}

func TestExpand(t *testing.T) {
	expand := func(f *fixture, v *lvmdv1.Volume, path string, required int64) (*csi.NodeExpandVolumeResponse, error) {
		return f.NodeExpandVolume(f.ctx(), &csi.NodeExpandVolumeRequest{
			VolumeId: v.GetId(), VolumePath: path, StagingTargetPath: f.staging(v),
			CapacityRange: &csi.CapacityRange{RequiredBytes: required},
		})
	}
	grown := func(f *fixture, v *lvmdv1.Volume) {
		must.Get(f.machine.LVMD.ExpandVolume(f.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * gib}))(f.t)
	}
	t.Run("grows a mounted file system", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "xfs")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
		grown(f, v)
		got := must.Get(expand(f, v, f.target(v, "pod"), 2*gib))(f.t)
		if got.GetCapacityBytes() != 2*gib || len(f.fileSystems.Grown(v.GetDevicePath())) != 1 {
			t.Errorf("got %v, grown %q", got, f.fileSystems.Grown(v.GetDevicePath()))
		}
	})
	t.Run("grows through the staging path where the target is read-only", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "xfs")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), true))
		must.Get(expand(f, v, f.target(v, "pod"), gib))(f.t)
		if got := f.fileSystems.Grown(v.GetDevicePath()); len(got) != 1 || got[0] != f.staging(v) {
			t.Errorf("grown through %q", got)
		}
	})
	t.Run("refuses a file system that cannot be written to", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "xfs")
		must.Succeed(f.t, f.stage(v, filesystemAccess(reader)))
		_, err := expand(f, v, f.staging(v), gib)
		wantError(t, err, codes.FailedPrecondition, "mounted read-only")
	})
	t.Run("has nothing to do for raw block", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "")
		must.Succeed(f.t, f.publish(v, "pod", blockAccess(writer), false))
		grown(f, v)
		got := must.Get(expand(f, v, f.target(v, "pod"), 2*gib))(f.t)
		if got.GetCapacityBytes() != 2*gib || len(f.fileSystems.Grown(v.GetDevicePath())) != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("refuses more than the volume has", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		_, err := expand(f, v, f.staging(v), gib+gib/2)
		wantError(t, err, codes.OutOfRange, "required_bytes: 1536Mi is not allowed: it is more than the 1Gi that")
	})
	t.Run("does not find a volume elsewhere than where it is", func(t *testing.T) {
		f := newFixture(t)
		v, other := f.volume("a", "ext4"), f.volume("b", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.stage(other, filesystemAccess(writer)))
		_, err := expand(f, v, f.staging(other), gib)
		wantError(t, err, codes.NotFound, "shows device")
		_, err = expand(f, v, "some/path", gib)
		wantError(t, err, codes.NotFound, "neither staged nor published")
	})
}

func TestHealth(t *testing.T) {
	health := func(f *fixture, v *lvmdv1.Volume) []*csi.VolumeHealth_VolumeHealthEntry {
		t.Helper()
		got := must.Get(f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId(), StagingTargetPath: f.staging(v)}))(f.t)
		if id := got.GetVolumeHealth().GetVolumeId(); id != v.GetId() {
			t.Errorf("volume %q", id)
		}
		return got.GetVolumeHealth().GetHealthStatuses()
	}
	t.Run("of a healthy volume is empty", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		if got := health(f, v); len(got) != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("reports lvmd's conditions", func(t *testing.T) {
		f := newFixture(t)
		v := f.alter(f.volume("a", "ext4"), func(v *lvmdv1.Volume) {
			v.Conditions = []*lvmdv1.Condition{{Type: "LVMBusy", Message: "m"}, {Type: "MissingDevice"}}
		})
		got := health(f, v)
		if len(got) != 2 || got[0].GetReason() != "LVMBusy" || got[0].GetMessage() != "m" ||
			got[0].GetStatus() != csi.VolumeHealthErrorType_DEGRADED || got[1].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE {
			t.Errorf("got %v", got)
		}
	})
	t.Run("reports a file system that fails", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.Kill(deviceOf(v))
		got := health(f, v)
		if len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemFailed || got[0].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE {
			t.Errorf("got %v", got)
		}
	})
	t.Run("reports a file system that went read-only by itself", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.TurnReadOnly(deviceOf(v))
		got := health(f, v)
		if len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemErrors || got[0].GetStatus() != csi.VolumeHealthErrorType_DEGRADED ||
			!strings.Contains(got[0].GetMessage(), "read-only") {
			t.Errorf("got %v", got)
		}
	})
	t.Run("reports a file system with errors", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.SetErrors(deviceOf(v), 2)
		got := health(f, v)
		if len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemErrors || got[0].GetStatus() != csi.VolumeHealthErrorType_DEGRADED {
			t.Errorf("got %v", got)
		}
	})
	t.Run("reports what the kernel noticed and went on with", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.mounts.SetWarnings(deviceOf(v), 2)
		got := health(f, v)
		if len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemWarnings || got[0].GetStatus() != csi.VolumeHealthErrorType_DEGRADED ||
			!strings.Contains(got[0].GetMessage(), "2 I/O errors") {
			t.Errorf("got %v", got)
		}
		// It is used as before, not unmounted for repair.
		must.Succeed(f.t, f.publish(v, "pod", filesystemAccess(writer), false))
		f.mounts.SetErrors(deviceOf(v), 1)
		if got := health(f, v); len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemErrors {
			t.Errorf("what is worse: got %v", got)
		}
	})
	t.Run("of an unknown volume is not found", func(t *testing.T) {
		f := newFixture(t)
		_, err := f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: "unknown"})
		wantError(t, err, codes.NotFound, "no volume")
	})
}
