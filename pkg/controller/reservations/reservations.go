// Package reservations reports to nodes what claims have reserved there, so that volumes which
// Pods define themselves, and which are made without the controller, do not take it.
//
// A create that is sent at once reaches its node as soon as a report could, and reserves there
// itself. So a change is reported once it has lasted for Delay: then claims wait, for their
// slot, for the node to answer, or for another attempt.
//
// It never makes or ends a reservation. Caller: pkg/controller.
package reservations

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// Delay is how long a change of a node's reservations waits for others: longer than
	// most creates take.
	Delay = time.Second
	// renewAfter is how often reservations are reported again that do not change: a node
	// forgets them after five minutes.
	renewAfter = 2 * time.Minute
	// timeout bounds one report. A node answers it without running anything.
	timeout = 10 * time.Second
	// workers is to how many nodes reports are sent at once.
	workers = 16
	// most is how many reservations a node takes.
	most = 1000
)

// Reporter reports reservations. Its methods may be called concurrently.
type Reporter struct {
	*cluster.Cluster
	ledger *scheduler.Ledger
	loop   *workloop.Loop[string]

	mu    sync.Mutex
	nodes map[string]*node
}

// node is what was last reported to a node.
type node struct {
	// epoch is of the run of lvmd that it was reported to, and at is when.
	epoch string
	// reported is nil where a call failed: the node may have it, or not.
	reported *lvmdv1.SetReservationsRequest
	at       time.Time
	// since is when reservations were first seen to differ from reported, or zero.
	since time.Time
}

// New makes a Reporter. Run runs it.
func New(c *cluster.Cluster, ledger *scheduler.Ledger) *Reporter {
	r := &Reporter{Cluster: c, ledger: ledger, nodes: map[string]*node{}}
	r.loop = workloop.New(workloop.Options[string]{
		Name: "reservations", Parallel: workers, RetryMin: Delay, RetryMax: 30 * time.Second, Work: r.sync,
		Failed: func(ctx context.Context, node string, err error) {
			r.Log.Log(ctx, slog.LevelInfo, "node does not know what claims have reserved there, trying on", "node", node, "error", err)
		},
	})
	return r
}

// Run works until ctx is done.
func (r *Reporter) Run(ctx context.Context) error {
	for _, view := range r.Fleet.Views() {
		r.loop.Add(view.Node)
	}
	r.loop.Run(ctx)
	return nil
}

// NodeChanged looks again at a node: reservations there were made or ended, or it reported.
func (r *Reporter) NodeChanged(node string) { r.loop.Add(node) }

// sync reports a node's reservations if it does not know them, and returns when to look again.
func (r *Reporter) sync(ctx context.Context, name string) (time.Duration, error) {
	view, ok := r.Fleet.View(name)
	if !ok || !view.Reported() {
		r.forget(name)
		return 0, nil
	}
	if !view.Connected {
		return 0, nil // its connection is a change
	}
	want := r.reservationsOn(name)
	again, due := r.due(name, view.Epoch, want)
	if !due {
		return again, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := r.Fleet.SetReservations(ctx, name, want)
	if err != nil && status.Code(err) != codes.Unimplemented { // it is of an older version
		r.noteFailed(name)
		return 0, fmt.Errorf("report reservations: %w", err)
	}
	return r.noteReported(name, view.Epoch, want), nil
}

// reservationsOn returns what is reserved on a node, as it is reported. A reservation without a volume
// has a node seem too small for a Pod: no volume of it will be made there.
func (r *Reporter) reservationsOn(name string) *lvmdv1.SetReservationsRequest {
	reserved := slices.DeleteFunc(r.ledger.ReservedOn(name), func(one scheduler.Reservation) bool { return one.Volume == "" })
	slices.SortFunc(reserved, func(a, b scheduler.Reservation) int { return cmp.Compare(a.Volume, b.Volume) })
	want := &lvmdv1.SetReservationsRequest{ClusterId: r.ID}
	for _, one := range reserved[:min(len(reserved), most)] {
		want.Reservations = append(want.Reservations, &lvmdv1.Reservation{Name: one.Volume, DeviceClass: one.Class, RequiredBytes: max(1, one.Bytes)})
	}
	return want
}

// due reports whether a node is to be notified now of what is reserved there; if not, it returns
// when to look again.
func (r *Reporter) due(name, epoch string, want *lvmdv1.SetReservationsRequest) (again time.Duration, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil || n.epoch != epoch {
		n = &node{epoch: epoch, reported: &lvmdv1.SetReservationsRequest{ClusterId: want.GetClusterId()}}
		r.nodes[name] = n
	}
	now := r.Now()
	if n.reported != nil && proto.Equal(n.reported, want) {
		n.since = time.Time{}
		if len(want.GetReservations()) == 0 {
			return 0, false
		}
		left := n.at.Add(renewAfter).Sub(now)
		return left, left <= 0
	}
	if n.since.IsZero() {
		n.since = now
	}
	left := n.since.Add(Delay).Sub(now)
	return left, left <= 0
}

// noteReported notes what was reported to a node, and returns when to look again.
func (r *Reporter) noteReported(name, epoch string, what *lvmdv1.SetReservationsRequest) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[name] = &node{epoch: epoch, reported: what, at: r.Now()}
	if len(what.GetReservations()) == 0 {
		return 0
	}
	return renewAfter
}

// noteFailed notes that it is not known what a node knows.
func (r *Reporter) noteFailed(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[name]; n != nil {
		n.reported = nil
	}
}

func (r *Reporter) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
}

// Known is of how many nodes something is kept.
func (r *Reporter) Known() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.nodes)
}
