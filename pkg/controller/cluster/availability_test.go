package cluster

import (
	"log/slog"
	"testing"
	"time"
)

func TestTheEndOfAnEarlierGraceHoldsNothingBack(t *testing.T) {
	a, held := newTestAvailability()
	first := a.now()
	a.NoteAway("n1")
	a.NoteConnected("n1")
	a.endGrace("n1", first)
	if len(held) != 0 || len(a.HeldBack(CauseAway)) != 0 {
		t.Fatalf("held back: %v", held)
	}
	// An outdated view shows n1 as away.
	a.connected = func(string) bool {
		if !a.mu.TryLock() {
			t.Fatal("connected is called with the lock held")
		}
		a.mu.Unlock()
		return true
	}
	a.NoteAway("n1")
	a.endGrace("n1", first)
	if len(held) != 0 || a.NoteAway("n1") {
		t.Fatalf("held back though connected: %v", held)
	}
	// n1 leaves after it was found connected: it gets another grace.
	connected := true
	a.connected = func(string) bool {
		was := connected
		connected = false
		return was
	}
	a.endGrace("n1", first)
	if a.nodes["n1"].presence != away {
		t.Fatal("it is never held back")
	}
}

// holds is the set of classes held back, as "node/class".
type holds map[string]bool

func (h holds) Hold(node, class string, held bool) {
	if delete(h, node+"/"+class); held {
		h[node+"/"+class] = true
	}
}

// newTestAvailability has a clock that stands still and timers that never fire.
func newTestAvailability() (a *Availability, held holds) {
	now := time.Unix(1000, 0)
	held = holds{}
	return &Availability{
		connected: func(string) bool { return false }, changed: func(string) {}, ledger: held,
		now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler),
		Grace: time.Hour, Least: time.Hour, Most: 5 * time.Hour, Bound: 5 * time.Hour, nodes: map[string]*nodeState{},
	}, held
}

func TestFailuresInARowHoldAClassBackForLongerEachTime(t *testing.T) {
	a, held := newTestAvailability()
	now := a.now()
	a.now = func() time.Time { return now }
	fail := func() time.Duration { return a.Failed("n1", "fast", now, false) }
	for range FailuresToHold - 1 {
		if d := fail(); d != 0 {
			t.Fatalf("held back for %v too early", d)
		}
	}
	for _, want := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour, 5 * time.Hour, 5 * time.Hour} {
		if d := fail(); d != want || !held["n1/fast"] {
			t.Fatalf("held back for %v (%v), want %v", d, held, want)
		}
		sent := now
		now = now.Add(time.Minute)
		if d := a.Failed("n1", "fast", sent, false); d != 0 {
			t.Fatalf("a create of before counts again: %v", d)
		}
		until := a.HeldUntil("n1", "fast")
		now = until
		a.endHold("n1", "fast", until)
		if len(held) != 0 {
			t.Fatalf("still held back: %v", held)
		}
	}
	if !a.Succeeded("n1", "fast") || len(held) != 0 {
		t.Fatalf("a success changes nothing: %v", held)
	}
	if d := fail(); d != 0 {
		t.Fatalf("the first failure after a success holds it back for %v", d)
	}
	if d := a.Failed("n1", "fast", now, true); d != time.Hour {
		t.Fatalf("a definite one holds it back for %v", d)
	}
	if a.Failed("n1", "slow", now, false) != 0 || held["n1/slow"] {
		t.Error("the failures count against another class")
	}
}

// until is beyond the longest hold, as a leader with a fast clock would set it. Failures after the
// hold must count although they precede until.
func TestFailuresCountAgainAfterAHoldThatAFastClockSaid(t *testing.T) {
	a, held := newTestAvailability()
	until := a.now().Add(100 * time.Hour)
	a.Adopt("n1", "fast", until)
	if d := a.Failed("n1", "fast", a.now(), true); d != 0 || !held["n1/fast"] {
		t.Fatalf("while it is held back, it is for %v more (%v)", d, held)
	}
	now := a.now().Add(a.Most)
	a.now = func() time.Time { return now }
	a.endHold("n1", "fast", until)
	if d := a.Failed("n1", "fast", now, true); d == 0 || !held["n1/fast"] {
		t.Errorf("a definite failure holds it back for %v (%v)", d, held)
	}
}
