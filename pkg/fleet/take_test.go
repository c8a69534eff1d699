package fleet

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

func oneNode() (f *Fleet, n *node, s *uplink.Session, changes *int) {
	changes = new(int)
	f = New(Options{OnChange: func(*View) { *changes++ }})
	s = &uplink.Session{}
	n = &node{name: "n", view: &View{Node: "n", Epoch: "run", Generation: 5}, session: s}
	f.nodes[n.name] = n
	return f, n, s, changes
}

func TestAReportIsAppliedWhereItFollowsTheOneBefore(t *testing.T) {
	for name, test := range map[string]struct {
		report *lvmdv1.WatchResponse
		// replaced means that another session is current by now.
		replaced bool
		fails    codes.Code
		want     uint64
	}{
		"the next":                              {report: &lvmdv1.WatchResponse{Epoch: "run", Generation: 6}, want: 6},
		"the same again":                        {report: &lvmdv1.WatchResponse{Epoch: "run", Generation: 5}, fails: codes.Internal, want: 5},
		"a change of another run":               {report: &lvmdv1.WatchResponse{Epoch: "other", Generation: 6}, fails: codes.Internal, want: 5},
		"the full state of another run":         {report: &lvmdv1.WatchResponse{Epoch: "other", Generation: 1, Full: true}, want: 1},
		"the next, of a session replaced":       {report: &lvmdv1.WatchResponse{Epoch: "run", Generation: 6}, replaced: true, want: 5},
		"the same again, of a session replaced": {report: &lvmdv1.WatchResponse{Epoch: "run", Generation: 5}, replaced: true, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			f, n, s, changes := oneNode()
			if test.replaced {
				n.session = &uplink.Session{}
			}
			if err := f.take(n, s, test.report); status.Code(err) != test.fails {
				t.Errorf("error %v, want %v", err, test.fails)
			}
			if n.view.Generation != test.want || n.view.Connected != (*changes == 1) || *changes > 0 != (test.want != 5) {
				t.Errorf("the view is %+v after %d changes, want generation %d", n.view, *changes, test.want)
			}
		})
	}
}

// The node reconnects while the fleet builds a view from the old session's report: fleet.Add does
// not wait for that.
func TestASessionThatIsReplacedMeanwhileChangesNothing(t *testing.T) {
	f, n, s, changes := oneNode()
	n.order.Lock()
	defer n.order.Unlock()
	before := f.viewBy(n, s)
	next := &uplink.Session{}
	n.session = next
	f.replace(n, s, &View{Node: "n", Epoch: "run", Generation: 6}, nil)
	if n.view != before || n.session != next || *changes != 0 {
		t.Errorf("the view is %+v after %d changes, the session the new one: %t", n.view, *changes, n.session == next)
	}
}
