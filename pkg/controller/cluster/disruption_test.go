package cluster

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestADisruptionIsMuchOfAFleetAwayThatComesBack(t *testing.T) {
	const grace, bound, never, none = 25 * time.Second, 2 * time.Minute, 1 << 62, -1
	for name, test := range map[string]struct {
		state fleetState
		want  bool
	}{
		"all are connected":                      {fleetState{5000, 0, never, none, never}, false},
		"the fleet comes back":                   {fleetState{1000, 4000, time.Second, none, time.Second}, true},
		"a third is away":                        {fleetState{4000, 2000, time.Second, none, time.Second}, false},
		"more than a third is away":              {fleetState{4000, 2001, time.Second, none, time.Second}, true},
		"a rack is lost, and none comes back":    {fleetState{60, 40, never, none, never}, false},
		"none came back for a grace":             {fleetState{60, 40, grace, none, grace}, false},
		"5 % are down":                           {fleetState{95, 5, time.Second, none, time.Second}, false},
		"all are away":                           {fleetState{0, 5000, never, none, never}, true},
		"one node of one is away":                {fleetState{0, 1, never, none, never}, false},
		"one node of two is away":                {fleetState{1, 1, time.Second, none, time.Second}, false},
		"two nodes of three are away":            {fleetState{1, 2, time.Second, none, time.Second}, false},
		"three nodes of three are away":          {fleetState{0, 3, never, none, never}, true},
		"three nodes of four are away":           {fleetState{1, 3, time.Second, none, time.Second}, true},
		"it lasts: few are still to come":        {fleetState{4999, 1, grace - 1, time.Minute, grace - 1}, true},
		"it lasts: all are back":                 {fleetState{5000, 0, 0, time.Minute, 0}, false},
		"it lasts: no more come back":            {fleetState{4750, 250, grace, time.Minute, grace}, false},
		"it lasts: all are away":                 {fleetState{0, 5000, never, bound - 1, never}, true},
		"it lasted for too long, with all away":  {fleetState{0, 5000, never, bound, never}, false},
		"it lasts for long: ever fewer are away": {fleetState{2500, 2500, 0, bound, grace - 1}, true},
		"it lasts for long: one comes and goes":  {fleetState{2500, 2500, 0, bound, grace}, false},
		"it lasted for too long, and they come":  {fleetState{2500, 2500, 0, disruptionBounds * bound, 0}, false},
		"it lasts: all are away in a small one":  {fleetState{0, 1, never, time.Second, never}, true},
		"a node went away when it had just come": {fleetState{99, 1, 0, none, 0}, false},
	} {
		if got := test.state.disrupted(grace, bound); got != test.want {
			t.Errorf("%s (%+v): got %t, want %t", name, test.state, got, test.want)
		}
	}
}

// fleetOf is an Availability with nodes. It needs a synctest bubble.
type fleetOf struct {
	*Availability
	mu   sync.Mutex
	held holds
}

func newFleetOf() *fleetOf {
	f := &fleetOf{held: holds{}}
	f.Availability = NewAvailability(func(string) bool { return false }, f, func(string) {}, time.Now, slog.New(slog.DiscardHandler))
	return f
}

func (f *fleetOf) Hold(node, class string, held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held.Hold(node, class, held)
}

// each calls note for the nodes from to to-1, with a pause after each.
func each(note func(string), from, to int, pause time.Duration) {
	for i := from; i < to; i++ {
		note(fmt.Sprintf("n%03d", i))
		time.Sleep(pause)
	}
}

// wantHeld checks the number of nodes held back after a delay.
func (f *fleetOf) wantHeld(t *testing.T, when string, after time.Duration, want int) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	got := len(f.HeldBack(CauseAway))
	f.mu.Lock()
	defer f.mu.Unlock()
	if got != want || len(f.held) != want {
		t.Errorf("%s: %d nodes are held back, %d in the ledger, want %d", when, got, len(f.held), want)
	}
}

func TestNodesAreHeldBackInADisruptionAsTheRuleSays(t *testing.T) {
	noteAway := func(f *fleetOf) func(string) { return func(node string) { f.NoteAway(node) } }
	for name, run := range map[string]func(*testing.T, *fleetOf){
		"all come back, late": func(t *testing.T, f *fleetOf) {
			each(noteAway(f), 0, 100, 0)
			f.wantHeld(t, "after two graces without any", 2*awayGrace, 0)
			each(f.NoteConnected, 0, 100, awayGrace/50)
			f.wantHeld(t, "when all are back", disruptionBound, 0)
		},
		"all come back, and that takes long": func(t *testing.T, f *fleetOf) {
			each(noteAway(f), 0, 100, 0)
			each(f.NoteConnected, 0, 90, 4*time.Second)
			f.wantHeld(t, "after the bound", 0, 0)
			each(f.NoteConnected, 90, 100, 4*time.Second)
			f.wantHeld(t, "when all are back", disruptionBound, 0)
		},
		"all but some come back": func(t *testing.T, f *fleetOf) {
			each(noteAway(f), 0, 100, 0)
			each(f.NoteConnected, 0, 95, awayGrace/50)
			f.wantHeld(t, "when no more come", awayGrace*3/4, 0)
			f.wantHeld(t, "a grace later", awayGrace/2, 5)
			f.NoteConnected("n099")
			f.wantHeld(t, "when one is back", 0, 4)
		},
		"none comes back": func(t *testing.T, f *fleetOf) {
			each(noteAway(f), 0, 100, 0)
			f.wantHeld(t, "before the bound", disruptionBound-1, 0)
			f.wantHeld(t, "at the bound", awayGrace/5, 100)
		},
		"a rack is lost": func(t *testing.T, f *fleetOf) {
			each(f.NoteConnected, 0, 100, 0)
			each(noteAway(f), 0, 40, 0)
			f.wantHeld(t, "before the grace is over", awayGrace-1, 0)
			f.wantHeld(t, "when it is over", 1, 40)
		},
		"half is lost while a node comes and goes": func(t *testing.T, f *fleetOf) {
			each(f.NoteConnected, 0, 100, 0)
			each(noteAway(f), 0, 50, 0)
			for range 12 {
				f.NoteAway("n099")
				time.Sleep(5 * time.Second)
				f.NoteConnected("n099")
				time.Sleep(5 * time.Second)
			}
			f.wantHeld(t, "after the bound", awayGrace/5, 50)
			f.NoteAway("n098")
			f.wantHeld(t, "and another is lost", awayGrace, 51)
		},
		"one of two is lost": func(t *testing.T, f *fleetOf) {
			each(noteAway(f), 0, 2, 0)
			f.NoteConnected("n000")
			f.wantHeld(t, "when the grace is over", awayGrace, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, newFleetOf()) })
		})
	}
}
