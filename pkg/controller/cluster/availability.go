package cluster

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// awayGrace is how long a node may be without an uplink before its capacity is held
	// back: longer than a reconnect takes, and shorter than releaseUnreachable, lest a
	// claim that is rescheduled come to the same node again.
	awayGrace = 25 * time.Second
	// FailuresToHold is how many creates in a row may fail in a device class of a node
	// before its capacity is held back.
	FailuresToHold = 3
	// holdLeast and holdMost bound for how long it is held back then: each time twice as
	// long as the time before, until a create succeeds.
	holdLeast = 30 * time.Second
	holdMost  = 10 * time.Minute
)

// Why a node is held back, and the label "cause" of carve_controller_held_back_nodes.
const (
	CauseAway    = "away"
	CauseFailing = "failing"
)

// Availability decides where capacity is held back, so that the scheduler does not
// choose a node that cannot provision: all of a node whose agent is away, and a device
// class of a node in which creates fail. What is held back is published as zero, and
// seems full to immediate binding and to GetCapacity.
//
// A node is offered again as soon as it reports, a class for one attempt when its time
// is over, and for good when a create succeeds there. All methods may be called
// concurrently.
type Availability struct {
	// connected reports whether a node has an uplink and has reported over it. Like changed, it is
	// called without a lock.
	connected func(node string) bool
	ledger    Ledger
	// changed is called with a node whose capacity is another now.
	changed func(node string)
	now     func() time.Time
	log     *slog.Logger

	Grace, Least, Most time.Duration
	// Bound is how long a disruption lasts in which the nodes that are away do not get fewer; any lasts at most
	// disruptionBounds times as long.
	Bound time.Duration

	mu     sync.Mutex
	nodes  map[string]*nodeState
	counts [presences]int // of nodes, by presence
	// returnedAt is when a node that was away came back last.
	returnedAt time.Time
	disruption disruption
}

// Ledger has the methods of *scheduler.Ledger that Availability calls. Hold makes a class seem full, or ends that.
// Availability calls it under its lock, so that the ledger learns of holds and their ends in the order of the
// decisions; Hold takes no lock but the ledger's.
type Ledger interface {
	Hold(node, class string, held bool)
}

// NewAvailability makes a view in which every node can provision.
func NewAvailability(connected func(node string) bool, ledger Ledger, changed func(node string), now func() time.Time, log *slog.Logger) *Availability {
	return &Availability{connected: connected, ledger: ledger, changed: changed, now: now, log: log, Grace: awayGrace, Least: holdLeast, Most: holdMost, Bound: disruptionBound, nodes: map[string]*nodeState{}}
}

// nodeState is what is known of a node's ability to provision.
type nodeState struct {
	presence presence
	// awaySince is when the node was first found without uplink, of no meaning while it has one.
	awaySince time.Time
	classes   map[string]*failing // by the device class' name
	refused   map[string]*failing // by the StorageClass' name
}

// presence is whether a node has an uplink.
type presence int

const (
	unknown   presence = iota // nothing was noted yet
	connected                 // it has one
	away                      // it has none, and its grace is not over
	overdue                   // its grace ended while there is a disruption
	held                      // it is held back
	presences
)

// failing is a device class of a node in which creates failed since the last success.
type failing struct {
	// Count is how many of them count, holds how often the class was held back.
	count, holds int
	// held says that it is held back, until when until says.
	held  bool
	until time.Time
	// over is when it was held back last. That may be before until, which another replica's clock may have said.
	over time.Time
}

// state returns what is known of a node, made if need be. The caller holds a.mu.
func (a *Availability) state(node string) *nodeState {
	s := a.nodes[node]
	if s == nil {
		s = &nodeState{classes: map[string]*failing{}, refused: map[string]*failing{}}
		a.nodes[node] = s
		a.counts[unknown]++
	}
	return s
}

// become notes a node's presence. The caller holds a.mu.
func (a *Availability) become(s *nodeState, p presence) {
	a.counts[s.presence]--
	a.counts[p]++
	s.presence = p
}

// NoteConnected offers a node again that was away.
func (a *Availability) NoteConnected(node string) {
	a.mu.Lock()
	s := a.state(node)
	was := s.presence
	a.become(s, connected)
	var v verdict
	if was > connected {
		a.returnedAt = a.now()
		v = a.judge()
	}
	if was == held {
		a.ledger.Hold(node, "", false)
	}
	a.mu.Unlock()
	a.act(v)
	if was == held {
		a.log.Info("node is back, its capacity is offered again", "node", node)
		a.changed(node)
	}
}

// NoteAway holds a node back that is still without uplink when the grace is over, or the
// disruption in which it ends, and reports whether it is held back. Calling it again changes nothing.
func (a *Availability) NoteAway(node string) bool {
	a.mu.Lock()
	s := a.state(node)
	if s.presence > connected {
		defer a.mu.Unlock()
		return s.presence == held
	}
	since := a.now()
	s.awaySince = since
	a.become(s, away)
	time.AfterFunc(a.Grace, func() { a.endGrace(node, since) })
	v := a.judge()
	a.mu.Unlock()
	a.act(v)
	return false
}

// endGrace holds a node back that has been away since then, unless there is a disruption: it is called
// again when that ends.
func (a *Availability) endGrace(node string, since time.Time) {
	// A node that connects after this is released by NoteConnected.
	returned := a.connected(node)
	a.mu.Lock()
	s := a.nodes[node]
	if s == nil || s.presence != away && s.presence != overdue || !s.awaySince.Equal(since) {
		a.mu.Unlock()
		return
	}
	if returned { // it was taken for away by a view that was old already
		a.become(s, connected)
		a.mu.Unlock()
		if !a.connected(node) {
			a.NoteAway(node) // it went away since it was asked for: NoteAway saw the grace that ended here
		}
		return
	}
	if s.presence == away && !a.disruption.since.IsZero() {
		a.become(s, overdue)
		a.mu.Unlock()
		a.log.Debug("node is not connected, and is not held back while many come back", "node", node)
		return
	}
	a.become(s, held)
	a.ledger.Hold(node, "", true)
	a.mu.Unlock()
	a.log.Warn("node is not connected, its capacity is held back", "node", node, "after", a.Grace)
	a.changed(node)
}

// Nodes returns the nodes of which something is known.
func (a *Availability) Nodes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.nodes))
}

// Forget drops what is known of a node that is gone.
func (a *Availability) Forget(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	if s == nil {
		return
	}
	a.counts[s.presence]--
	delete(a.nodes, node)
	a.ledger.Hold(node, "", false)
	for class := range s.classes {
		a.ledger.Hold(node, class, false)
	}
}

// Failed counts a failure of a create that began then, and returns for how long the
// class is held back because of it. A definite one needs no others. A create that began
// before the last time in which the class was held back was over says nothing new: a
// burst that fails together is held against the class once.
func (a *Availability) Failed(node, class string, began time.Time, definite bool) time.Duration {
	length := a.countFailure(node, class, began, definite)
	if length > 0 {
		a.log.Warn("creates fail on node, the capacity of its device class is held back", "node", node, "class", class, "for", length)
		a.changed(node)
	}
	return length
}

func (a *Availability) countFailure(node, class string, began time.Time, definite bool) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.state(node)
	f := s.classes[class]
	if f == nil {
		f = &failing{}
		s.classes[class] = f
	}
	if f.held || began.Before(f.over) {
		return 0
	}
	if f.count++; definite {
		f.count = max(f.count, FailuresToHold)
	}
	if f.count < FailuresToHold {
		return 0
	}
	length := a.nextHold(f)
	a.holdUntil(node, class, f, a.now().Add(length), length)
	return length
}

// holdUntil holds a class back for so long. The caller holds a.mu.
func (a *Availability) holdUntil(node, class string, f *failing, until time.Time, length time.Duration) {
	f.held, f.until = true, until
	a.ledger.Hold(node, class, true)
	time.AfterFunc(length, func() { a.endHold(node, class, until) })
}

// endHold offers a class again that was held back until then.
func (a *Availability) endHold(node, class string, until time.Time) {
	a.mu.Lock()
	s := a.nodes[node]
	over := s != nil && s.classes[class] != nil && s.classes[class].held && s.classes[class].until.Equal(until)
	if over {
		s.classes[class].held, s.classes[class].over = false, a.now()
		a.ledger.Hold(node, class, false)
	}
	a.mu.Unlock()
	if over {
		a.log.Info("node is offered again after failures", "node", node, "class", class)
		a.changed(node)
	}
}

// Succeeded forgets the failures in a class, and reports whether it had been held back
// since the last success.
func (a *Availability) Succeeded(node, class string) bool {
	a.mu.Lock()
	var f *failing
	if s := a.nodes[node]; s != nil {
		f = s.classes[class]
		delete(s.classes, class)
	}
	if f == nil {
		a.mu.Unlock()
		return false
	}
	if f.held {
		a.ledger.Hold(node, class, false)
	}
	a.mu.Unlock()
	if f.held {
		a.changed(node)
	}
	return f.holds > 0
}

// HeldUntil returns until when a class is held back for failures, or zero.
func (a *Availability) HeldUntil(node, class string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.nodes[node]; s != nil && s.classes[class] != nil && s.classes[class].held {
		return s.classes[class].until
	}
	return time.Time{}
}

// Adopt takes over what another replica decided about a class: that it is held back
// until then, or, where until is zero, that it is not.
func (a *Availability) Adopt(node, class string, until time.Time) {
	left := until.Sub(a.now())
	a.mu.Lock()
	defer a.mu.Unlock()
	if left <= 0 {
		if s := a.nodes[node]; s != nil && s.classes[class] != nil {
			delete(s.classes, class)
			a.ledger.Hold(node, class, false)
		}
		return
	}
	s := a.state(node)
	if f := s.classes[class]; f != nil && f.until.Equal(until) {
		return
	}
	s.classes[class] = &failing{count: FailuresToHold, holds: 1}
	a.holdUntil(node, class, s.classes[class], until, min(left, a.Most))
}

// HeldBack returns the nodes that are held back for a cause.
func (a *Availability) HeldBack(cause string) (nodes []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for node, s := range a.nodes {
		is := s.presence == held
		if cause == CauseFailing {
			is = false
			for _, f := range s.classes {
				is = is || f.held
			}
		}
		if is {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// NodeFault reports whether a create failed for something that is wrong with the node,
// and not with the request, for want of space, or because the connection broke. One that
// is definite needs no repetition: LVM cannot change the group, or the node answered with another
// volume.
func NodeFault(err error) (fault, definite bool) {
	var taken *IDTakenError
	var wrong *WrongVolumeError
	if errors.As(err, &taken) || errors.As(err, &wrong) {
		return true, true
	}
	switch fleet.Reason(err) {
	case names.ReasonDeviceMissing, names.ReasonNotResponding:
		return true, true
	case names.ReasonCommandFailed, names.ReasonCommandTimedOut:
		return true, false
	case "":
	default:
		return false, false
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Internal, codes.DataLoss, codes.Unimplemented:
		return !fleet.IsNotConnected(err), false
	default:
		return false, false
	}
}
