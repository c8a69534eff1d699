package powercut

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestTooFewAcknowledgementsAreAShortage(t *testing.T) {
	l := &ledger{rounds: 3}
	err := l.shortage()
	for o := range operations {
		if err == nil || !strings.Contains(err.Error(), o.String()+": 0, want at least") {
			t.Errorf("nothing was acknowledged, and %q is not missed: %v", o, err)
		}
		for range leastPerRound[o] {
			l.acknowledge(o)
		}
	}
	if err := l.shortage(); err != nil {
		t.Errorf("what three rounds must have was acknowledged: %v", err)
	}
	l.rounds = 30
	if err := l.shortage(); err == nil || !strings.Contains(err.Error(), "volumes created: 6, want at least 60") {
		t.Errorf("thirty rounds have as much as three must have: %v", err)
	}
	l.rounds, l.acks[survival] = 3, 0
	if err := l.shortage(); err == nil {
		t.Error("no volume was there after a cut, and none is missed")
	}
	if err := l.shortage(survival); err != nil {
		t.Errorf("what is not asked for is missed: %v", err)
	}
}

func TestHalfOfAllStepsDoWhatIsMissing(t *testing.T) {
	l := &ledger{rounds: 3, acks: leastPerRound}
	l.acks[snapshotCreated] = 0
	random := rand.New(rand.NewPCG(1, 0))
	const steps = 1000
	var chosen [operations]int
	for range steps {
		chosen[l.next(random)]++
	}
	if got := chosen[snapshotCreated]; got < steps/2 || got == steps {
		t.Errorf("only snapshots are missing, and %d of %d steps make one, want half of them and more, and not all", got, steps)
	}
	for o := range survival {
		if chosen[o] == 0 {
			t.Errorf("no step of %d is one of %q", steps, o)
		}
	}
}
