package driver_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

var monitoring = mount.Holder{PID: 4711, Process: "agent", Pod: "pod-of-the-agent", Container: "abc", Path: "/rootfs/data"}

const monitoringNamed = "process 4711 (agent) of Pod pod-of-the-agent in container abc has it mounted at /rootfs/data"

func TestWhatAnotherNamespaceHasMountedIsNeitherCheckedNorReformatted(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*fixture)
		words   string
	}{
		"the holder is named":               {func(*fixture) {}, monitoringNamed},
		"what to do is said":                {func(*fixture) {}, "mountPropagation: HostToContainer"},
		"a holder that cannot be seen, too": {func(f *fixture) { f.mounts.HideHost() }, "no process of the host is seen"},
	} {
		for _, profile := range []filesystem.Profile{"", filesystem.Scratch} {
			t.Run(name+" "+string(profile), func(t *testing.T) {
				f := newFixture(t)
				v := f.volume("a", "ext4")
				v.Profile = string(profile)
				f.lvmd.Put(v)
				f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), NeedsCheck: true})
				touched := false
				f.fileSystems.Checking = func(context.Context, string) error { touched = true; return nil }
				f.mounts.Hold(deviceOf(v), monitoring)
				test.prepare(f)
				wantError(t, f.stage(v, access(v)), codes.FailedPrecondition, test.words)
				if touched {
					t.Error("the mounted file system was checked or reformatted")
				}
				f.wantLayers(0)
				f.mounts.Hold(deviceOf(v))
				must.Succeed(t, f.stage(v, access(v)))
			})
		}
	}
}

func TestAFailedFileSystemThatAnotherNamespaceHasIsNotMountedAgain(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "xfs")
	must.Succeed(t, f.stage(v, access(v)))
	f.mounts.Kill(deviceOf(v))
	f.mounts.Hold(deviceOf(v), monitoring)
	wantError(t, f.stage(v, access(v)), codes.FailedPrecondition, monitoringNamed)
	f.mounts.Revive(deviceOf(v))
	f.mounts.Hold(deviceOf(v))
	must.Succeed(t, f.stage(v, access(v)))
}

func TestAnUnmountedVolumeThatAnotherNamespaceHasIsReported(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(t, f.stage(v, access(v)))
	must.Succeed(t, f.unstage(v))
	if log := f.machine.Log.String(); strings.Contains(log, "still mounted elsewhere") {
		t.Errorf("nothing has it: %s", log)
	}
	must.Succeed(t, f.stage(v, access(v)))
	f.mounts.Hold(deviceOf(v), monitoring)
	must.Succeed(t, f.unstage(v))
	if log := f.machine.Log.String(); !strings.Contains(log, monitoringNamed) {
		t.Errorf("the holder is not named: %s", log)
	}
}

func TestTheHolderOfAVolumeThatNoPodUsesIsAConditionOfTheVolume(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(t, f.stage(v, access(v)))
	f.mounts.Hold(deviceOf(v), monitoring)
	if found := f.CheckHealth(t.Context(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("while it is staged: %q", found)
	}
	must.Succeed(t, f.unstage(v))
	found := f.CheckHealth(t.Context(), driver.Conditions{})
	if !strings.Contains(found[v.GetId()][driver.ReasonMountedElsewhere], monitoringNamed) {
		t.Errorf("after it is unstaged: %q, want the holder named", found)
	}
	f.mounts.Hold(deviceOf(v))
	if found := f.CheckHealth(t.Context(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("once nothing has it: %q", found)
	}
}

func TestWhatAPodMountedOfARawBlockVolumeThatItHasIsNoCondition(t *testing.T) {
	f := newFixture(t)
	for _, v := range []*lvmdv1.Volume{f.volume("a", ""), f.locked("b", "")} {
		must.Succeed(t, f.stage(v, access(v)))
		must.Succeed(t, f.publish(v, "pod", access(v), false))
		device := must.Get(f.mounts.At(f.target(v, "pod")))(t).Device
		f.mounts.Hold(device, monitoring)
		if found := f.CheckHealth(t.Context(), driver.Conditions{}); len(found) > 0 {
			t.Errorf("while a Pod has it: %q", found)
		}
		must.Succeed(t, f.unpublish(v, "pod"))
		found := f.CheckHealth(t.Context(), driver.Conditions{})
		if !strings.Contains(found[v.GetId()][driver.ReasonMountedElsewhere], monitoringNamed) {
			t.Errorf("after it is unpublished: %q, want the holder named", found)
		}
		f.mounts.Hold(device)
	}
}
