package cluster

import (
	"time"
)

const (
	// disruptionBound limits a disruption during which the number of absent nodes does not fall.
	// Meanwhile a claim on an absent node is rescheduled, possibly to the same node again.
	disruptionBound = 2 * time.Minute
	// disruptionBounds limits any disruption to a multiple of the bound: ten thousand nodes take
	// minutes to come back.
	disruptionBounds = 5
	// disruptionLeast is the number of absent nodes that a disruption needs. Fewer are held back as
	// soon as their grace is over.
	disruptionLeast = 3
)

type disruption struct {
	since time.Time // zero for none
	// most is the maximum of absent nodes, fewest the minimum since then, and fellAt when it was
	// reached.
	most, fewest int
	fellAt       time.Time
}

func (d *disruption) note(n int, now time.Time) {
	switch {
	case n > d.most:
		d.most, d.fewest = n, n
	case n < d.fewest:
		d.fewest, d.fellAt = n, now
	}
}

// fleetState is the input of disrupted. In a disruption much of the fleet is away because of the
// controller, which was stopped or cut off, and comes back: a change of a node's capacity would be
// undone seconds later.
type fleetState struct {
	// connected nodes have an uplink; away ones have none and are not held back for it.
	connected, away int
	// returned is the time since the last node came back. lasts is the length of the disruption,
	// negative if there is none. fell is the time since the number of absent nodes reached a new
	// minimum after its maximum: a node that comes and goes does not count.
	returned, lasts, fell time.Duration
}

// disrupted reports whether to hold no absent node back. A disruption begins while more than a
// third of the nodes, and at least disruptionLeast, are away, if one came back within a grace. It
// ends when all are back, none has come back for a grace, or it has lasted for bound and the number
// of absent nodes has not fallen for a grace. While all nodes are away, the scheduler has no
// alternative: no node need have come back, and only the bounds apply.
func (s fleetState) disrupted(grace, bound time.Duration) bool {
	switch {
	case s.lasts >= bound && s.fell >= grace, s.lasts >= disruptionBounds*bound, s.connected > 0 && s.returned >= grace:
		return false
	case s.lasts >= 0:
		return s.away > 0
	default:
		return s.away >= disruptionLeast && 2*s.away > s.connected
	}
}

// verdict is a change of the disruption, for act.
type verdict struct {
	began, ended bool
	state        fleetState
	// since is when the disruption began. overdue holds the nodes whose grace ended in it, with the
	// start of their absence.
	since   time.Time
	overdue map[string]time.Time
}

// judge begins or ends a disruption. The caller holds a.mu, and calls act after releasing it.
func (a *Availability) judge() verdict {
	now := a.now()
	v := verdict{since: a.disruption.since, state: fleetState{
		connected: a.counts[connected], away: a.counts[away], returned: now.Sub(a.returnedAt), lasts: -1}}
	was := !a.disruption.since.IsZero()
	if was {
		v.state.away += a.counts[overdue] // after the disruption they will be held back
		v.state.lasts = now.Sub(a.disruption.since)
		a.disruption.note(v.state.away, now)
		v.state.fell = now.Sub(a.disruption.fellAt)
	}
	is := v.state.disrupted(a.Grace, a.Bound)
	switch {
	case is && !was:
		v.began, v.since = true, now
		a.disruption = disruption{since: now, most: v.state.away, fewest: v.state.away, fellAt: now}
	case was && !is:
		v.ended, a.disruption = true, disruption{}
		v.overdue = map[string]time.Time{}
		for node, s := range a.nodes {
			if s.presence == overdue {
				v.overdue[node] = s.awaySince
			}
		}
	}
	return v
}

// act must be called without a.mu.
func (a *Availability) act(v verdict) {
	switch {
	case v.began:
		a.log.Warn("many nodes are away at once, none is held back while they come back", "away", v.state.away, "connected", v.state.connected, "at_most", disruptionBounds*a.Bound)
		a.watchDisruption(v.since)
	case v.ended:
		a.log.Info("nodes that are away are held back again", "away", v.state.away, "connected", v.state.connected, "after", v.state.lasts)
		for node, since := range v.overdue {
			a.endGrace(node, since)
		}
	}
}

func (a *Availability) watchDisruption(began time.Time) {
	time.AfterFunc(a.Grace/5, func() {
		a.mu.Lock()
		if !a.disruption.since.Equal(began) {
			a.mu.Unlock()
			return
		}
		v := a.judge()
		a.mu.Unlock()
		if a.act(v); !v.ended {
			a.watchDisruption(began)
		}
	})
}
