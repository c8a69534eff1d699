package powercut

import (
	"strings"
	"testing"
)

func TestTooFewAcknowledgementsAreAShortage(t *testing.T) {
	l := &ledger{}
	err := l.shortage(3)
	for o := range operations {
		if err == nil || !strings.Contains(err.Error(), o.String()+": 0, want at least") {
			t.Errorf("nothing was acknowledged, and %q is not missed: %v", o, err)
		}
		for range leastPerRound[o] {
			l.acknowledge(o)
		}
	}
	if err := l.shortage(3); err != nil {
		t.Errorf("what three rounds must have was acknowledged: %v", err)
	}
	if err := l.shortage(30); err == nil || !strings.Contains(err.Error(), "volumes created: 6, want at least 60") {
		t.Errorf("thirty rounds have as much as three must have: %v", err)
	}
	l.acks[survival] = 0
	if err := l.shortage(3); err == nil {
		t.Error("no volume was there after a cut, and none is missed")
	}
	if err := l.shortage(3, survival); err != nil {
		t.Errorf("what is not asked for is missed: %v", err)
	}
}
