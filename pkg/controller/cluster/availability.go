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
	// awayGrace is how long a node may lack an uplink before its capacity is held back: longer than
	// a reconnect, and shorter than releaseUnreachable, so that a rescheduled claim does not get
	// the same node again.
	awayGrace = 25 * time.Second
	// FailuresToHold is the number of consecutive failed creates after which a device class of a
	// node is held back.
	FailuresToHold = 3
	// holdLeast and holdMost limit the hold of a class. Its length doubles each time until a create
	// succeeds.
	holdLeast = 30 * time.Second
	holdMost  = 10 * time.Minute
)

// The causes of holding a node back, and the label "cause" of carve_controller_held_back_nodes.
const (
	CauseAway    = "away"
	CauseFailing = "failing"
)

// Availability holds capacity back, so that the scheduler does not choose a node that cannot
// provision: a whole node whose agent is away, and a device class of a node in which creates fail.
// Capacity held back is published as zero, and seems full to immediate binding and GetCapacity.
//
// A node is released as soon as it reports. A class is released for one attempt when its time is
// over, and for good when a create succeeds. The methods may be called concurrently.
type Availability struct {
	// connected reports whether a node has an uplink and has reported over it. Like changed, it is
	// called without a lock.
	connected func(node string) bool
	ledger    Ledger
	// changed is called with a node whose capacity changed.
	changed func(node string)
	now     func() time.Time
	log     *slog.Logger

	Grace, Least, Most time.Duration
	// Bound limits a disruption during which the number of absent nodes does not fall. Any
	// disruption ends after disruptionBounds times Bound.
	Bound time.Duration

	mu     sync.Mutex
	nodes  map[string]*nodeState
	counts [presences]int // of nodes, by presence
	// returnedAt is when an absent node last came back.
	returnedAt time.Time
	disruption disruption
}

// Ledger is the part of *scheduler.Ledger that Availability uses. Hold makes a class seem full, or
// ends that. It is called with Availability.mu held, so that the ledger sees holds in the order of
// the decisions; it may only take the ledger's own lock.
type Ledger interface {
	Hold(node, class string, held bool)
}

// NewAvailability returns an Availability that holds nothing back.
func NewAvailability(connected func(node string) bool, ledger Ledger, changed func(node string), now func() time.Time, log *slog.Logger) *Availability {
	return &Availability{connected: connected, ledger: ledger, changed: changed, now: now, log: log, Grace: awayGrace, Least: holdLeast, Most: holdMost, Bound: disruptionBound, nodes: map[string]*nodeState{}}
}

type nodeState struct {
	presence presence
	// awaySince is when the node was first seen without uplink. It is meaningless while the node
	// has one.
	awaySince time.Time
	classes   map[string]*failing // by name of the device class
	refused   map[string]*failing // by name of the StorageClass
}

type presence int

const (
	unknown   presence = iota // not observed yet
	connected                 // has an uplink
	away                      // has none, within its grace
	overdue                   // its grace ended during a disruption
	held                      // is held back
	presences
)

// failing is a device class of a node with failed creates since the last success.
type failing struct {
	// count is the number of relevant failures, holds the number of holds.
	count, holds int
	// until is the end of the hold while held is true.
	held  bool
	until time.Time
	// over is when the last hold ended. It may precede until, which may stem from another replica's
	// clock.
	over time.Time
}

// state creates the state if necessary. The caller holds a.mu.
func (a *Availability) state(node string) *nodeState {
	s := a.nodes[node]
	if s == nil {
		s = &nodeState{classes: map[string]*failing{}, refused: map[string]*failing{}}
		a.nodes[node] = s
		a.counts[unknown]++
	}
	return s
}

// become must be called with a.mu held.
func (a *Availability) become(s *nodeState, p presence) {
	a.counts[s.presence]--
	a.counts[p]++
	s.presence = p
}

// NoteConnected ends the hold of a node that was away.
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

// NoteAway starts a node's grace, after which the node is held back unless it returns. During a
// disruption the hold waits for its end. NoteAway reports whether the node is held back; repeated
// calls change nothing.
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

// endGrace holds back a node that has been away since the given time. A disruption defers that, and
// calls it again at its end.
func (a *Availability) endGrace(node string, since time.Time) {
	returned := a.connected(node)
	a.mu.Lock()
	s := a.nodes[node]
	if s == nil || s.presence != away && s.presence != overdue || !s.awaySince.Equal(since) {
		a.mu.Unlock()
		return
	}
	if returned { // an outdated view showed it as away
		a.become(s, connected)
		a.mu.Unlock()
		if !a.connected(node) {
			a.NoteAway(node) // it left since the first check, and NoteAway then saw the grace that ended here
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

// Nodes returns the nodes that have a state.
func (a *Availability) Nodes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.nodes))
}

// Forget drops the state of a node that is gone.
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

// Failed counts a failure of a create, and returns the length of the hold that it causes, or zero.
// A definite failure suffices by itself. Failures of creates that began before the end of the last
// hold are ignored, so that a burst counts only once.
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

// holdUntil must be called with a.mu held.
func (a *Availability) holdUntil(node, class string, f *failing, until time.Time, length time.Duration) {
	f.held, f.until = true, until
	a.ledger.Hold(node, class, true)
	time.AfterFunc(length, func() { a.endHold(node, class, until) })
}

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

// Succeeded forgets the failures of a class, and reports whether it was held back since the last
// success.
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

// HeldUntil returns the end of the hold of a class, or zero.
func (a *Availability) HeldUntil(node, class string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.nodes[node]; s != nil && s.classes[class] != nil && s.classes[class].held {
		return s.classes[class].until
	}
	return time.Time{}
}

// Adopt takes over another replica's decision: to hold a class back until the given time, or, if
// that is zero, not to.
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

// HeldBack returns the nodes that are held back for cause.
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

// NodeFault reports whether a create failed because of the node, rather than because of the
// request, a lack of space or a broken connection. A definite fault needs no repetition: LVM cannot
// change the group, or the node answered with another volume.
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
