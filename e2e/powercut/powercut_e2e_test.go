//go:build e2e

package powercut

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var (
	rounds = flag.Int("rounds", 3, "how many times the power is cut")
	given  = flag.Uint64("seed", 0, "decides the load, the moments of the cuts and what they lose; 0 for another each time")
	// mostLoad is the longest time from lvmd's start to the power cut.
	mostLoad = flag.Duration("load", 10*time.Second, "the longest load before a cut")
)

// seedOf returns the seed that was given or another one, and prints how to repeat the run.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := *given
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-args -seed %d -rounds %d", seed, *rounds)
	return seed
}

// enoughBound is how long the last round's load may take to reach the numbers that
// all rounds must have.
const enoughBound = 4 * time.Minute

// lossyRounds is a number of rounds in which some disk loses something: half of all cuts cost
// it everything that was not flushed, and it has something then in most rounds.
const lossyRounds = 20

// checkBound is how long the check of all volumes after a boot may take.
const checkBound = 5 * time.Minute

// loadUntilCut asks lvmd for this and that and cuts the power at the moment given, but
// not before there is enough. It fails if there is not enough in time.
func (r *rig) loadUntilCut(ctx context.Context, l *ledger, seed uint64, moment time.Duration, enough func() error) error {
	machine := r.machine
	timer := time.AfterFunc(moment, func() {
		deadline := time.Now().Add(enoughBound)
		for enough() != nil && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond)
		}
		machine.Kill()
	})
	defer timer.Stop()
	err := r.load(ctx, l, seed)
	machine.Kill()
	if short := enough(); short != nil {
		err = errors.Join(err, fmt.Errorf("too little was acknowledged before the last cut: %w", short))
	}
	return err
}

func TestWhatWasAcknowledgedSurvivesPowerCuts(t *testing.T) {
	seed := seedOf(t)
	random := rand.New(rand.NewPCG(seed, 0))
	r, err := newRig(t.Context(), t.TempDir(), seed, os.Stderr)
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
	r.group.Flush()
	r.mirror.Flush()
	r.state.Flush()
	free, err := r.freeSpace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{rounds: *rounds}
	// Cuts that cost the disks nothing prove little: there are more until one did.
	for round := 0; round < *rounds || r.lost == 0 && round < lossyRounds; round++ {
		moment := time.Duration(random.Int64N(int64(*mostLoad)))
		last := round >= *rounds-1
		if !last && random.IntN(4) == 0 {
			// In the middle of what lvmd finishes or undoes after its start.
			time.Sleep(moment / 4)
		} else if err := r.loadUntilCut(t.Context(), l, random.Uint64(), moment, func() error {
			if !last {
				return nil
			}
			return l.shortage(survival)
		}); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		lost, err := r.cut()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.boot(t.Context()); err != nil {
			t.Fatalf("round %d: after a cut: %v", round, err)
		}
		checking, cancel := context.WithTimeout(t.Context(), checkBound)
		err = r.check(checking, l)
		cancel()
		if err != nil {
			t.Fatalf("round %d: %s: %v\nlvmd's log:\n%s", round, lost, err, r.log())
		}
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("round %d: cut after %v; %s; so far %d entries; %s", round, moment, lost, len(l.entries), l.acknowledged())
	}
	if err := l.shortage(); err != nil {
		t.Errorf("lvmd acknowledged too little in %d rounds: %v\nlvmd's log:\n%s", *rounds, err, r.log())
	}
	if r.lost == 0 {
		t.Errorf("in %d rounds the disks lost nothing, want at least a sector that was not flushed", max(*rounds, lossyRounds))
	}
	if err := r.checkEmpty(t.Context(), l, free); err != nil {
		t.Errorf("%v\nlvmd's log:\n%s", err, r.log())
	}
	t.Logf("%d volumes and snapshots; %s; %d, %d and %d flushes",
		len(l.entries), l.acknowledged(), r.group.Flushes(), r.mirror.Flushes(), r.state.Flushes())
}
