package scheduler

import (
	"slices"
	"testing"
	"time"
)

const mib = 1 << 20

func class(name string, available int64) ClassReport {
	return ClassReport{Name: name, Group: "vg", Total: 1000 * mib, Available: available, MaximumVolume: available, AllocationUnit: 4 * mib}
}

func counted(names ...string) map[string]struct{} {
	m := map[string]struct{}{}
	for _, n := range names {
		m[n] = struct{}{}
	}
	return m
}

func fixedClock(t *time.Time) func() time.Time { return func() time.Time { return *t } }

func wantFree(t *testing.T, l *Ledger, node, class string, available, maximum int64) {
	t.Helper()
	free, ok := l.FreeSpace(node, class)
	if !ok {
		t.Fatalf("no free space known for class %q of %s", class, node)
	}
	if free.Available != available || free.MaximumVolume != maximum {
		t.Errorf("free space of class %q of %s: available %d MiB, maximum %d MiB; want %d and %d", class, node,
			free.Available/mib, free.MaximumVolume/mib, available/mib, maximum/mib)
	}
}

func TestLedger(t *testing.T) {
	now := time.Unix(1000, 0)
	later := now.Add(time.Minute)
	reserve := func(claim string, bytes int64) Reservation {
		return Reservation{Claim: claim, Volume: "pvc-" + claim, Node: "n", Class: "c", Bytes: bytes, Deadline: later}
	}
	for name, test := range map[string]func(*testing.T, *Ledger){
		"without reservations, free space is what the node reported": func(t *testing.T, l *Ledger) {
			wantFree(t, l, "n", "c", 100*mib, 100*mib)
		},
		"a reservation takes its size rounded up to the allocation unit": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 9*mib))
			wantFree(t, l, "n", "c", 88*mib, 88*mib)
		},
		"a reservation that is renewed counts once": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			if changed := l.Reserve(reserve("a", 8*mib)); len(changed) != 0 {
				t.Errorf("renewing changed %v", changed)
			}
			wantFree(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a report that counts the volume ends the reservation in the same instant": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 92*mib)}, Volumes: counted("pvc-a")})
			wantFree(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a report that does not count the volume yet leaves the reservation": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 50*mib)}, Volumes: counted("pvc-b")})
			wantFree(t, l, "n", "c", 42*mib, 40*mib) // whole units
		},
		"a claim whose volume is already counted reserves nothing": func(t *testing.T, l *Ledger) {
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 92*mib)}, Volumes: counted("pvc-a")})
			l.Reserve(reserve("a", 8*mib))
			wantFree(t, l, "n", "c", 92*mib, 92*mib)
		},
		"free space is never negative": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 1<<62))
			l.Reserve(reserve("b", 1<<62))
			wantFree(t, l, "n", "c", 0, 0)
		},
		"classes of one group share its space, others do not": func(t *testing.T, l *Ledger) {
			other := class("other", 70*mib)
			other.Group = "vg2"
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib), class("twin", 100*mib), other}})
			l.Reserve(reserve("a", 8*mib))
			wantFree(t, l, "n", "twin", 92*mib, 92*mib)
			wantFree(t, l, "n", "other", 70*mib, 68*mib)
		},
		"what a class takes of its group beyond its size is charged to all that share it": func(t *testing.T, l *Ledger) {
			// Two mirrors, with a unit of bookkeeping each.
			mirrored := class("mirrored", 44*mib)
			mirrored.UnitCost, mirrored.VolumeCost = 8*mib, 8*mib
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 96*mib), mirrored}})
			r := reserve("a", 8*mib)
			r.Class = "mirrored"
			l.Reserve(r)
			wantFree(t, l, "n", "c", 72*mib, 72*mib)
			wantFree(t, l, "n", "mirrored", 32*mib, 32*mib)
			l.Reserve(reserve("b", 4*mib))
			wantFree(t, l, "n", "c", 68*mib, 68*mib)
			wantFree(t, l, "n", "mirrored", 28*mib, 28*mib)
		},
		"the empty class is the default class, for reports and reservations": func(t *testing.T, l *Ledger) {
			c := class("c", 100*mib)
			c.Default = true
			l.Report("n", NodeReport{Classes: []ClassReport{c}})
			r := reserve("a", 8*mib)
			r.Class = ""
			l.Reserve(r)
			wantFree(t, l, "n", "", 92*mib, 92*mib)
			wantFree(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a claim that moves to another node leaves nothing behind": func(t *testing.T, l *Ledger) {
			l.Report("m", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
			l.Reserve(reserve("a", 8*mib))
			r := reserve("a", 8*mib)
			r.Node = "m"
			if changed := l.Reserve(r); !slices.Equal(changed, []string{"n", "m"}) {
				t.Errorf("changed %v, want both nodes", changed)
			}
			wantFree(t, l, "n", "c", 100*mib, 100*mib)
			wantFree(t, l, "m", "c", 92*mib, 92*mib)
		},
		"a released claim gives its space back": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			if node, ok := l.Release("a"); !ok || node != "n" {
				t.Errorf("Release: %q %v", node, ok)
			}
			if _, ok := l.Release("a"); ok {
				t.Error("released twice")
			}
			wantFree(t, l, "n", "c", 100*mib, 100*mib)
		},
		"a reservation on a node that did not report yet counts when it does": func(t *testing.T, l *Ledger) {
			r := reserve("a", 8*mib)
			r.Node = "new"
			l.Reserve(r)
			l.Report("new", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
			wantFree(t, l, "new", "c", 92*mib, 92*mib)
		},
		"a class that the node does not have has no free space": func(t *testing.T, l *Ledger) {
			if _, ok := l.FreeSpace("n", "nope"); ok {
				t.Error("free space for an unknown class")
			}
			if _, ok := l.FreeSpace("n", ""); ok {
				t.Error("free space for a default class where there is none")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(fixedClock(&now))
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
			test(t, l)
		})
	}
}

func TestReservationLapsesAtItsDeadline(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(fixedClock(&now))
	l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
	l.Reserve(Reservation{Claim: "a", Volume: "pvc-a", Node: "n", Class: "c", Bytes: 8 * mib, Deadline: now.Add(time.Minute)})
	if changed := l.Expire(); len(changed) != 0 {
		t.Errorf("expired early: %v", changed)
	}
	now = now.Add(2 * time.Minute)
	wantFree(t, l, "n", "c", 100*mib, 100*mib)
	if changed := l.Expire(); !slices.Equal(changed, []string{"n"}) || l.Reservations() != 0 {
		t.Errorf("Expire changed %v and left %d", changed, l.Reservations())
	}
}

func TestAReportThatIsOlderThanTheLastOneIsIgnored(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(fixedClock(&now))
	report := func(epoch string, generation uint64, available int64, volumes ...string) {
		l.Report("n", NodeReport{Epoch: epoch, Generation: generation, Classes: []ClassReport{class("c", available)}, Volumes: counted(volumes...)})
	}
	report("e1", 1, 100*mib)
	l.Reserve(Reservation{Claim: "a", Volume: "pvc-a", Node: "n", Class: "c", Bytes: 8 * mib, Deadline: now.Add(time.Minute)})
	report("e1", 3, 92*mib, "pvc-a")
	report("e1", 2, 100*mib) // overtaken: it would offer the space of pvc-a
	wantFree(t, l, "n", "c", 92*mib, 92*mib)
	report("e1", 3, 92*mib, "pvc-a") // repeated
	wantFree(t, l, "n", "c", 92*mib, 92*mib)
	report("e2", 1, 100*mib) // lvmd restarted
	wantFree(t, l, "n", "c", 100*mib, 100*mib)
}

func TestNothingIsLeftOfANodeThatIsForgottenAndHasNoReservations(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(fixedClock(&now))
	l.Report("n", NodeReport{Classes: []ClassReport{class("c", mib)}})
	l.Reserve(Reservation{Claim: "a", Volume: "pvc-a", Node: "n", Class: "c", Bytes: mib, Deadline: now})
	l.Forget("n")
	l.Forget("n")
	if _, ok := l.FreeSpace("n", "c"); ok {
		t.Error("free space on a forgotten node")
	}
	l.Release("a")
	if len(l.nodes) != 0 {
		t.Errorf("%d nodes are left", len(l.nodes))
	}
}

func TestWhatIsHeldSeemsFullToNewPlacements(t *testing.T) {
	l := NewLedger(time.Now)
	l.Report("n1", NodeReport{Classes: []ClassReport{
		{Name: "fast", Default: true, Group: "a", Total: 100, Available: 100, MaximumVolume: 100},
		{Name: "slow", Group: "b", Total: 100, Available: 100, MaximumVolume: 100},
	}})
	free := func(class string) int64 { r, _ := l.FreeSpace("n1", class); return r.Available + r.MaximumVolume }
	fits := func(class string) error { return l.Fit("n1", []Demand{{Class: class, Bytes: 10}}) }
	check := func(what string, fast, slow bool) {
		t.Helper()
		if (free("") > 0) != fast || (free("slow") > 0) != slow || (fits("") == nil) != fast || (fits("slow") == nil) != slow {
			t.Errorf("%s: free space %d and %d, fits %v and %v", what, free(""), free("slow"), fits(""), fits("slow"))
		}
		if err := l.FitAlone("n1", []Demand{{Bytes: 10}}); err != nil {
			t.Errorf("%s: does not fit alone: %v", what, err)
		}
		if c := l.Candidates("", 0); len(c) != 1 || c[0].Held == fast {
			t.Errorf("%s: candidates %+v", what, c)
		}
	}
	check("at first", true, true)
	l.Hold("n1", "fast", true)
	check("with one class held", false, true)
	l.Hold("n1", "", true)
	l.Hold("n1", "fast", false)
	check("with the node held", false, false)
	l.Hold("n1", "", false)
	check("when nothing is held any more", true, true)
}
