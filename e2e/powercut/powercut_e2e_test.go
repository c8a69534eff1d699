//go:build e2e

package powercut

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var (
	rounds = flag.Int("rounds", 3, "how many times the power is cut")
	seed   = flag.Uint64("seed", 0, "decides the load, the moments of the cuts and what they lose; 0 for another each time")
	// mostLoad is the longest time from lvmd's start to the power cut.
	mostLoad = flag.Duration("load", 10*time.Second, "the longest load before a cut")
)

func TestWhatWasAcknowledgedSurvivesPowerCuts(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-args -seed %d -rounds %d", *seed, *rounds)
	random := rand.New(rand.NewPCG(*seed, 0))
	r, err := newRig(t.Context(), t.TempDir(), *seed, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The machine's installation is not what is tested.
	r.group.Settle()
	r.mirror.Settle()
	r.state.Settle()
	room, err := r.room(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{}
	for round := range *rounds {
		moment := time.Duration(random.Int64N(int64(*mostLoad)))
		if random.IntN(4) == 0 {
			// In the middle of what lvmd finishes or undoes after its start.
			time.Sleep(moment / 4)
		} else {
			done := make(chan error, 1)
			machine := r.machine
			time.AfterFunc(moment, machine.Kill)
			go func() { done <- r.load(t.Context(), l, random.Uint64()) }()
			if err := <-done; err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			machine.Kill()
		}
		lost, err := r.cut()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.boot(t.Context()); err != nil {
			t.Fatalf("round %d: after a cut: %v", round, err)
		}
		if err := r.check(t.Context(), l); err != nil {
			t.Fatalf("round %d: %s: %v\nlvmd's log:\n%s", round, lost, err, r.log())
		}
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("round %d: cut after %v; %s; %d volumes and %d acknowledgements so far", round, moment, lost, len(l.entries), l.acks)
	}
	if err := r.checkEmpty(t.Context(), l, room); err != nil {
		t.Errorf("%v\nlvmd's log:\n%s", err, r.log())
	}
	t.Logf("%d volumes and snapshots, %d acknowledgements, %d, %d and %d flushes",
		len(l.entries), l.acks, r.group.Flushes(), r.mirror.Flushes(), r.state.Flushes())
}
