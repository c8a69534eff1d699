package cluster

import (
	"time"
)

const (
	// disruptionBound is how long a disruption lasts at most in which the number of nodes that are away does not go on
	// falling. A claim on a node that is away is rescheduled meanwhile, and may come to the same node again.
	disruptionBound = 2 * time.Minute
	// disruptionBounds is how many such times one lasts at most: ten thousand nodes take minutes to come back.
	disruptionBounds = 5
	// disruptionLeast is how many nodes are away at least when one begins: of fewer, each is held back as
	// soon as its grace is over.
	disruptionLeast = 3
)

// disruption is the one that lasts.
type disruption struct {
	since time.Time // zero for none
	// most is how many nodes were away at most, fewest at least after that, and fellAt is since when.
	most, fewest int
	fellAt       time.Time
}

// note notes how many nodes are away.
func (d *disruption) note(n int, now time.Time) {
	switch {
	case n > d.most:
		d.most, d.fewest = n, n
	case n < d.fewest:
		d.fewest, d.fellAt = n, now
	}
}

// fleetState is by what a disruption is judged. A disruption is a time in which much of the fleet is away
// because of the controller, which was stopped or cut off, and comes back: what is written of a node's capacity
// meanwhile is written again seconds later.
type fleetState struct {
	// connected nodes have an uplink. away are those that have none and are not held back for it.
	connected, away int
	// returned is how long ago the last node came back, lasts how long the disruption lasts: negative while
	// there is none. fell is how long ago fewer were away than at any time since the most were: a node that comes and
	// goes does not count.
	returned, lasts, fell time.Duration
}

// disrupted reports whether no node that is away is to be held back. That begins while more than a third are away,
// and goes on until all are back, none has come back for a grace, or it has lasted for bound and the number of those
// that are away has not fallen for a grace. Where all are away there is nothing to wait for, and none to choose
// instead: it lasts until the first is back, or for bound.
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

// verdict is what became of disruptions. act does what follows.
type verdict struct {
	began, ended bool
	state        fleetState
	// since is when the disruption began, overdue are the nodes whose grace ended in it, by since when they are away.
	since   time.Time
	overdue map[string]time.Time
}

// judge begins or ends a disruption. The caller holds a.mu, and calls act without it.
func (a *Availability) judge() verdict {
	now := a.now()
	v := verdict{since: a.disruption.since, state: fleetState{
		connected: a.counts[connected], away: a.counts[away], returned: now.Sub(a.returnedAt), lasts: -1}}
	was := !a.disruption.since.IsZero()
	if was {
		v.state.away += a.counts[overdue] // without a disruption they are about to be held back
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

// act does what follows from a verdict.
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

// watchDisruption looks now and then whether a disruption has ended that began then.
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
