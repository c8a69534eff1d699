package driver_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestHealthIsWatched(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	wantGauge := func(values string) {
		t.Helper()
		want := "# HELP carve_node_volume_conditions Volumes on the node that are not healthy, by reason.\n" +
			"# TYPE carve_node_volume_conditions gauge\n" + values
		if err := testutil.GatherAndCompare(f.Metrics.Registry, strings.NewReader(want), "carve_node_volume_conditions"); err != nil {
			t.Error(err)
		}
	}
	const healthy = `carve_node_volume_conditions{reason="FileSystemErrors"} 0
carve_node_volume_conditions{reason="FileSystemFailed"} 0
carve_node_volume_conditions{reason="FileSystemReadOnly"} 0
carve_node_volume_conditions{reason="FileSystemWarnings"} 0
`
	found := f.CheckHealth(context.Background(), driver.Ailments{})
	wantGauge(healthy)

	f.mounts.TurnReadOnly(deviceOf(v))
	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = []*lvmdv1.Condition{{Type: "Degraded", Message: "m"}} })
	for range 2 {
		found = f.CheckHealth(context.Background(), found)
	}
	const sick = `carve_node_volume_conditions{reason="Degraded"} 1
carve_node_volume_conditions{reason="FileSystemErrors"} 0
carve_node_volume_conditions{reason="FileSystemFailed"} 0
carve_node_volume_conditions{reason="FileSystemReadOnly"} 1
carve_node_volume_conditions{reason="FileSystemWarnings"} 0
`
	wantGauge(sick)
	if n := strings.Count(f.machine.Log.String(), "a volume is not healthy"); n != 2 {
		t.Errorf("logged %d times", n)
	}

	// Without lvmd nothing is known anew.
	f.machine.StopLVMD()
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	found = f.CheckHealth(short, found)
	wantGauge(sick)
	f.machine.StartLVMD()

	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = nil })
	must.Succeed(f.t, f.unstage(v))
	waittest.Succeeds(t, "nothing is wrong any more", func() error {
		found = f.CheckHealth(context.Background(), found)
		return testutil.GatherAndCompare(f.Metrics.Registry, strings.NewReader(
			"# HELP carve_node_volume_conditions Volumes on the node that are not healthy, by reason.\n"+
				"# TYPE carve_node_volume_conditions gauge\n"+strings.Replace(sick, "} 1", "} 0", 2)), "carve_node_volume_conditions")
	})
	if n := strings.Count(f.machine.Log.String(), "rid of what was wrong"); n != 2 {
		t.Errorf("logged %d times", n)
	}
}

func TestLvmdIsToldOnceWhatItDoesNotKnowByItself(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.alter(v, func(v *lvmdv1.Volume) { v.Conditions = []*lvmdv1.Condition{{Type: "Degraded", Message: "m"}} })
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	wantNoted := func(notes int, types ...string) {
		t.Helper()
		for range 2 {
			f.CheckHealth(context.Background(), driver.Ailments{})
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
	wantNoted(1, "FileSystemReadOnly")
	must.Succeed(f.t, f.unstage(v))
	wantNoted(2)
}

func TestStorageHealth(t *testing.T) {
	t.Run("of healthy classes is empty", func(t *testing.T) {
		f := newFixture(t)
		f.lvmd.SetClasses(&lvmdv1.DeviceClass{Name: "local"})
		got, err := f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{})
		if err != nil || len(got.GetBackendHealth()) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("tells each reason once, with its classes", func(t *testing.T) {
		f := newFixture(t)
		missing := &lvmdv1.Condition{Type: "MissingDevice", Message: "m"}
		f.lvmd.SetClasses(
			&lvmdv1.DeviceClass{Name: "b", Conditions: []*lvmdv1.Condition{missing}},
			&lvmdv1.DeviceClass{Name: "a", Conditions: []*lvmdv1.Condition{missing, {Type: "NotResponding", Message: "n"}}},
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
	t.Run("is not told when lvmd does not know", func(t *testing.T) {
		f := newFixture(t)
		f.lvmd.SetDown(true)
		_, err := f.NodeGetStorageHealth(f.ctx(), &csi.NodeGetStorageHealthRequest{})
		wantError(t, err, codes.Unavailable, "a disk is gone")
	})
}
