package driver_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestHealthIsWatched(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	wantGauge := func(values string) {
		t.Helper()
		want := "# HELP carve_node_volume_conditions Volumes on the node that are not healthy, by condition, looked at every 30 seconds.\n" +
			"# TYPE carve_node_volume_conditions gauge\n" + values
		if err := testutil.GatherAndCompare(f.Metrics.Registry, strings.NewReader(want), "carve_node_volume_conditions"); err != nil {
			t.Error(err)
		}
	}
	const healthy = `carve_node_volume_conditions{reason="FileSystemErrors"} 0
carve_node_volume_conditions{reason="FileSystemFailed"} 0
carve_node_volume_conditions{reason="FileSystemWarnings"} 0
carve_node_volume_conditions{reason="IOLimitsNotApplied"} 0
carve_node_volume_conditions{reason="MountedElsewhere"} 0
carve_node_volume_conditions{reason="UnmountFails"} 0
`
	found := f.CheckHealth(context.Background(), driver.Conditions{})
	wantGauge(healthy)

	f.mounts.TurnReadOnly(deviceOf(v))
	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = []*lvmdv1.Condition{{Type: "Degraded", Message: "m"}} })
	for range 2 {
		found = f.CheckHealth(context.Background(), found)
	}
	const unhealthy = `carve_node_volume_conditions{reason="Degraded"} 1
carve_node_volume_conditions{reason="FileSystemErrors"} 1
carve_node_volume_conditions{reason="FileSystemFailed"} 0
carve_node_volume_conditions{reason="FileSystemWarnings"} 0
carve_node_volume_conditions{reason="IOLimitsNotApplied"} 0
carve_node_volume_conditions{reason="MountedElsewhere"} 0
carve_node_volume_conditions{reason="UnmountFails"} 0
`
	wantGauge(unhealthy)
	if n := strings.Count(f.machine.Log.String(), "a volume is not healthy"); n != 2 {
		t.Errorf("logged %d times", n)
	}

	// Without lvmd nothing changes.
	f.machine.StopLVMD()
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	found = f.CheckHealth(short, found)
	wantGauge(unhealthy)
	f.machine.StartLVMD()

	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = nil })
	must.Succeed(f.t, f.unstage(v))
	waittest.Succeeds(t, "nothing is wrong any more", func() error {
		found = f.CheckHealth(context.Background(), found)
		return testutil.GatherAndCompare(f.Metrics.Registry, strings.NewReader(
			"# HELP carve_node_volume_conditions Volumes on the node that are not healthy, by condition, looked at every 30 seconds.\n"+
				"# TYPE carve_node_volume_conditions gauge\n"+strings.Replace(unhealthy, "} 1", "} 0", 2)), "carve_node_volume_conditions")
	})
	if n := strings.Count(f.machine.Log.String(), "a condition of a volume has ended"); n != 2 {
		t.Errorf("logged %d times", n)
	}
}

func TestLvmdIsNotifiedOnceOfWhatItDoesNotKnowByItself(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = []*lvmdv1.Condition{{Type: "Degraded", Message: "m"}} })
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	wantNoted := func(notes int, types ...string) {
		t.Helper()
		for range 2 {
			f.CheckHealth(context.Background(), driver.Conditions{})
		}
		var got []string
		for _, c := range f.listed()[0].GetFound() {
			got = append(got, c.GetType())
			if c.GetMessage() == "" {
				t.Errorf("%s has no message", c.GetType())
			}
		}
		if !slices.Equal(got, types) || f.lvmd.Notes() != notes {
			t.Errorf("noted %q with %d calls, want %q with %d", got, f.lvmd.Notes(), types, notes)
		}
	}
	wantNoted(0)
	f.mounts.TurnReadOnly(deviceOf(v))
	wantNoted(1, "FileSystemErrors")
	must.Succeed(f.t, f.unstage(v))
	wantNoted(2)
}

func TestStorageHealth(t *testing.T) {
	t.Run("of healthy classes is empty", func(t *testing.T) {
		f := newFixture(t)
		f.lvmd.SetClasses(lvmdfake.Class{Name: "local"})
		got, err := f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{})
		if err != nil || len(got.GetBackendHealth()) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("reports each reason once, with its classes", func(t *testing.T) {
		f := newFixture(t)
		missing := &lvmdv1.Condition{Type: "MissingDevice", Message: "m"}
		f.lvmd.SetClasses(
			lvmdfake.Class{Name: "b", Conditions: []*lvmdv1.Condition{missing}},
			lvmdfake.Class{Name: "a", Conditions: []*lvmdv1.Condition{missing, {Type: "NotResponding", Message: "n"}}},
		)
		got := must.Get(f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{}))(f.t)
		entries := got.GetBackendHealth()
		if len(entries) != 2 ||
			entries[0].GetReason() != "MissingDevice" || entries[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_DEGRADED ||
			entries[0].GetMessage() != "device class a: m; device class b: m" ||
			entries[1].GetReason() != "NotResponding" || entries[1].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
			t.Errorf("got %v", entries)
		}
	})
	t.Run("is not reported when lvmd does not know", func(t *testing.T) {
		f := newFixture(t)
		f.lvmd.SetDown(true)
		_, err := f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{})
		wantError(t, err, codes.Unavailable, "a disk is gone")
	})
}

func TestAVolumeWhoseHealthCannotBeReadHidesNoOthers(t *testing.T) {
	f := newFixture(t)
	var volumes []*lvmdv1.Volume
	for _, name := range []string{"a", "b", "c"} {
		v := f.volume(name, "ext4")
		must.Succeed(t, f.stage(v, filesystemAccess(writer)))
		volumes = append(volumes, v)
	}
	// In either order.
	for i, unread := range volumes {
		f.mounts.SetErrors(deviceOf(unread), 1)
		before := f.CheckHealth(t.Context(), driver.Conditions{})
		if len(before[unread.GetId()]) != 1 {
			t.Fatalf("found %q", before)
		}
		f.mounts.HideErrors(deviceOf(unread), errors.New("no such attribute"))
		unhealthy := volumes[(i+1)%len(volumes)]
		f.mounts.SetErrors(deviceOf(unhealthy), 2)
		found := f.CheckHealth(t.Context(), before)
		if found[unhealthy.GetId()][driver.ReasonFileSystemErrors] == "" {
			t.Errorf("volume %s fails, and found was %q", unhealthy.GetId(), found)
		}
		if !maps.Equal(found[unread.GetId()], before[unread.GetId()]) {
			t.Errorf("what was known of %s is %q, and was %q", unread.GetId(), found[unread.GetId()], before[unread.GetId()])
		}
		for _, v := range f.listed() {
			if v.GetId() != volumes[(i+2)%len(volumes)].GetId() && len(v.GetFound()) != 1 {
				t.Errorf("lvmd knows of %s %v", v.GetId(), v.GetFound())
			}
		}
		f.mounts.HideErrors(deviceOf(unread), nil)
		f.mounts.SetErrors(deviceOf(unread), 0)
		f.mounts.SetErrors(deviceOf(unhealthy), 0)
		if found := f.CheckHealth(t.Context(), found); len(found) > 0 {
			t.Errorf("at the end: %q", found)
		}
	}
}
