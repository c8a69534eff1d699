//go:build !kernel

package lvmd

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/leadership"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

func TestAnEarlierLeaderChangesNothing(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	first := leadership.With(t.Context(), leadership.Leadership{Cluster: "c", Lease: 100, Transitions: 4})
	second := leadership.With(t.Context(), leadership.Leadership{Cluster: "c", Lease: 100, Transitions: 5})
	other := leadership.With(t.Context(), leadership.Leadership{Cluster: "other", Lease: 1})
	create := request("a", 1)
	made, err := d.client.CreateVolume(first, create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.client.ListClasses(second, &lvmdv1.ListClassesRequest{}); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		_, err := d.client.CreateVolume(first, request("late", 1))
		wantCode(t, err, codes.FailedPrecondition, names.ReasonLeaderSuperseded)
		_, err = d.client.DeleteVolume(first, &lvmdv1.DeleteVolumeRequest{Id: made.GetVolume().GetId()})
		wantCode(t, err, codes.FailedPrecondition, names.ReasonLeaderSuperseded)
		_, err = d.client.ExpandVolume(first, &lvmdv1.ExpandVolumeRequest{Id: made.GetVolume().GetId(), RequiredBytes: 2 * testExtent})
		wantCode(t, err, codes.FailedPrecondition, names.ReasonLeaderSuperseded)
		if n := len(d.list()); n != 1 {
			t.Fatalf("%d volumes", n)
		}
	}
	refused()
	if _, err := d.client.GetVolume(first, &lvmdv1.GetVolumeRequest{Name: "a"}); err != nil {
		t.Errorf("it may not even look: %v", err)
	}
	if _, err := d.client.CreateVolume(other, create); err != nil {
		t.Errorf("the leader of another cluster: %v", err)
	}
	// The Lease was deleted and the controller restarted.
	again := leadership.With(t.Context(), leadership.Leadership{Cluster: "c", Lease: 101})
	if _, err := d.client.CreateVolume(again, create); err != nil {
		t.Errorf("the leader of a new Lease: %v", err)
	}
	d.stop()
	d = m.start(t)
	refused() // after a restart, too
	d.leaders.mu.Lock()
	d.leaders.now = func() time.Time { return time.Now().Add(leadershipMemory) }
	d.leaders.mu.Unlock()
	if _, err := d.client.DeleteVolume(first, &lvmdv1.DeleteVolumeRequest{Id: made.GetVolume().GetId()}); err != nil {
		t.Errorf("the numbers of a restored cluster are never taken: %v", err)
	}
	d.checkClean()
}
