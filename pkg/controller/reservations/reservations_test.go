package reservations

import (
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/scheduler"
)

func TestWhenReservationsAreReported(t *testing.T) {
	now := time.Now()
	r := New(&cluster.Cluster{Now: func() time.Time { return now }}, scheduler.NewLedger(func() time.Time { return now }))
	list := func(names ...string) *lvmdv1.SetReservationsRequest {
		want := &lvmdv1.SetReservationsRequest{}
		for _, name := range names {
			want.Reservations = append(want.Reservations, &lvmdv1.Reservation{Name: name, RequiredBytes: 1})
		}
		return want
	}
	for _, step := range []struct {
		what  string
		after time.Duration
		epoch string
		list  *lvmdv1.SetReservationsRequest
		again time.Duration
		due   bool
	}{
		{"nothing is reserved", 0, "1", list(), 0, false},
		{"a claim may be made at once", 0, "1", list("a"), Delay, false},
		{"it is", Delay / 2, "1", list(), 0, false},
		{"another one may be, too", time.Hour, "1", list("b"), Delay, false},
		{"and with it a third one", Delay / 2, "1", list("b", "c"), Delay / 2, false},
		{"they still wait", Delay / 2, "1", list("b", "c"), 0, true},
		{"the node knows", time.Minute, "1", list("b", "c"), renewAfter - time.Minute, false},
		{"the node is about to forget them", renewAfter - time.Minute, "1", list("b", "c"), 0, true},
		{"one is made", time.Second, "1", list("c"), Delay, false},
		{"the node still counts it", Delay, "1", list("c"), 0, true},
		{"lvmd starts again and knows nothing", time.Second, "2", list("c"), Delay, false},
		{"the other one is made before that is reported", Delay / 2, "2", list(), 0, false},
		{"a claim waits again", time.Second, "2", list("d"), Delay, false},
		{"for long", Delay, "2", list("d"), 0, true},
		{"it is abandoned", time.Second, "2", list(), Delay, false},
		{"which the node learns", Delay, "2", list(), 0, true},
		{"that is all", time.Hour, "2", list(), 0, false},
	} {
		now = now.Add(step.after)
		again, due := r.due("n1", step.epoch, step.list)
		if due != step.due || !due && again != step.again {
			t.Errorf("%s: due is %t, and it is looked at again after %s; want %t, %s", step.what, due, again, step.due, step.again)
		}
		if due {
			r.noteReported("n1", step.epoch, step.list)
		}
	}
}
