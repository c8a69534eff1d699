// Package wakeup lets a loop wait for an event or a time, whichever comes first. It is a leaf.
package wakeup

import (
	"context"
	"time"
)

// Signal wakes one goroutine. It is kept while none waits, and several are one. Its methods are
// safe for concurrent use.
type Signal chan struct{}

// New returns a signal.
func New() Signal { return make(Signal, 1) }

// Set wakes the waiting goroutine, or the next one that waits. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Wait waits for the signal or, unless that is zero, for the time until. It returns false when ctx
// is done.
func (s Signal) Wait(ctx context.Context, until time.Time) bool {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-s:
	case <-timer:
	case <-ctx.Done():
		return false
	}
	return true
}

// Earlier returns the earlier of two times; zero means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
