package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
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

func wantRoom(t *testing.T, l *Ledger, node, class string, available, maximum int64) {
	t.Helper()
	room, ok := l.Room(node, class)
	if !ok {
		t.Fatalf("no room known for class %q of %s", class, node)
	}
	if room.Available != available || room.MaximumVolume != maximum {
		t.Errorf("room of class %q of %s: available %d MiB, maximum %d MiB; want %d and %d", class, node,
			room.Available/mib, room.MaximumVolume/mib, available/mib, maximum/mib)
	}
}

func TestLedger(t *testing.T) {
	now := time.Unix(1000, 0)
	later := now.Add(time.Minute)
	reserve := func(claim string, bytes int64) Reservation {
		return Reservation{Claim: claim, Volume: "pvc-" + claim, Node: "n", Class: "c", Bytes: bytes, Deadline: later}
	}
	for name, test := range map[string]func(*testing.T, *Ledger){
		"without reservations, room is what the node reported": func(t *testing.T, l *Ledger) {
			wantRoom(t, l, "n", "c", 100*mib, 100*mib)
		},
		"a reservation takes its size rounded up to the allocation unit": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 9*mib))
			wantRoom(t, l, "n", "c", 88*mib, 88*mib)
		},
		"a reservation that is renewed counts once": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			if changed := l.Reserve(reserve("a", 8*mib)); len(changed) != 0 {
				t.Errorf("renewing changed %v", changed)
			}
			wantRoom(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a report that counts the volume ends the reservation in the same instant": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 92*mib)}, Volumes: counted("pvc-a")})
			wantRoom(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a report that does not count the volume yet leaves the reservation": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 50*mib)}, Volumes: counted("pvc-b")})
			wantRoom(t, l, "n", "c", 42*mib, 42*mib)
		},
		"a claim whose volume is already counted reserves nothing": func(t *testing.T, l *Ledger) {
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 92*mib)}, Volumes: counted("pvc-a")})
			l.Reserve(reserve("a", 8*mib))
			wantRoom(t, l, "n", "c", 92*mib, 92*mib)
		},
		"room is never negative": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 1<<62))
			l.Reserve(reserve("b", 1<<62))
			wantRoom(t, l, "n", "c", 0, 0)
		},
		"classes of one group share its space, others do not": func(t *testing.T, l *Ledger) {
			other := class("other", 70*mib)
			other.Group = "vg2"
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib), class("twin", 100*mib), other}})
			l.Reserve(reserve("a", 8*mib))
			wantRoom(t, l, "n", "twin", 92*mib, 92*mib)
			wantRoom(t, l, "n", "other", 70*mib, 70*mib)
		},
		"the empty class is the default class, for reports and reservations": func(t *testing.T, l *Ledger) {
			c := class("c", 100*mib)
			c.Default = true
			l.Report("n", NodeReport{Classes: []ClassReport{c}})
			r := reserve("a", 8*mib)
			r.Class = ""
			l.Reserve(r)
			wantRoom(t, l, "n", "", 92*mib, 92*mib)
			wantRoom(t, l, "n", "c", 92*mib, 92*mib)
		},
		"a claim that moves to another node leaves nothing behind": func(t *testing.T, l *Ledger) {
			l.Report("m", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
			l.Reserve(reserve("a", 8*mib))
			r := reserve("a", 8*mib)
			r.Node = "m"
			if changed := l.Reserve(r); !slices.Equal(changed, []string{"n", "m"}) {
				t.Errorf("changed %v, want both nodes", changed)
			}
			wantRoom(t, l, "n", "c", 100*mib, 100*mib)
			wantRoom(t, l, "m", "c", 92*mib, 92*mib)
		},
		"a released claim gives its room back": func(t *testing.T, l *Ledger) {
			l.Reserve(reserve("a", 8*mib))
			if node, ok := l.Release("a"); !ok || node != "n" {
				t.Errorf("Release: %q %v", node, ok)
			}
			if _, ok := l.Release("a"); ok {
				t.Error("released twice")
			}
			wantRoom(t, l, "n", "c", 100*mib, 100*mib)
		},
		"a reservation on a node that did not report yet counts when it does": func(t *testing.T, l *Ledger) {
			r := reserve("a", 8*mib)
			r.Node = "new"
			l.Reserve(r)
			l.Report("new", NodeReport{Classes: []ClassReport{class("c", 100*mib)}})
			wantRoom(t, l, "new", "c", 92*mib, 92*mib)
		},
		"a class that the node does not have has no room": func(t *testing.T, l *Ledger) {
			if _, ok := l.Room("n", "nope"); ok {
				t.Error("room for an unknown class")
			}
			if _, ok := l.Room("n", ""); ok {
				t.Error("room for a default class where there is none")
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
	wantRoom(t, l, "n", "c", 100*mib, 100*mib)
	if changed := l.Expire(); !slices.Equal(changed, []string{"n"}) || l.Reservations() != 0 {
		t.Errorf("Expire changed %v and left %d", changed, l.Reservations())
	}
}

// ledgerModel is a node as it really is, whose reports arrive late, and the
// claims that want volumes on it.
type ledgerModel struct {
	ledger    *Ledger
	now       time.Time
	free      int64            // really free on the node
	volumes   map[string]int64 // that really exist
	reported  int64            // free, in the last report
	reportedV map[string]struct{}
	claims    map[string]Reservation // open, by the model's own count
	next      int
}

func (m *ledgerModel) report() {
	m.reported = m.free
	m.reportedV = map[string]struct{}{}
	for name := range m.volumes {
		m.reportedV[name] = struct{}{}
		delete(m.claims, name)
	}
	c := class("c", m.free)
	m.ledger.Report("n", NodeReport{Classes: []ClassReport{c}, Volumes: m.reportedV})
}

func TestLedgerNeverLiesWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &ledgerModel{now: time.Unix(1000, 0), free: 100 * mib, volumes: map[string]int64{}, claims: map[string]Reservation{}}
		m.ledger = NewLedger(func() time.Time { return m.now })
		m.report()
		pick := func(t *rapid.T) (Reservation, bool) {
			if len(m.claims) == 0 {
				return Reservation{}, false
			}
			return m.claims[rapid.SampledFrom(slices.Sorted(maps.Keys(m.claims))).Draw(t, "volume")], true
		}
		t.Repeat(map[string]func(*rapid.T){
			"a claim selects the node": func(t *rapid.T) {
				m.next++
				name := fmt.Sprint("pvc-", m.next)
				r := Reservation{Claim: name, Volume: name, Node: "n", Class: "c", Deadline: m.now.Add(time.Minute),
					Bytes: rapid.Int64Range(1, 40*mib).Draw(t, "bytes")}
				m.claims[name] = r
				m.ledger.Reserve(r)
			},
			"a claim is seen again": func(t *rapid.T) {
				if r, ok := pick(t); ok {
					r.Deadline = m.now.Add(time.Minute)
					m.claims[r.Volume] = r
					m.ledger.Reserve(r)
				}
			},
			"the node makes a volume": func(t *rapid.T) {
				r, ok := pick(t)
				size := roundUp(r.Bytes, 4*mib)
				if _, exists := m.volumes[r.Volume]; ok && !exists && size <= m.free {
					m.volumes[r.Volume] = size
					m.free -= size
				}
			},
			"the node reports": func(*rapid.T) { m.report() },
			"a claim is given up": func(t *rapid.T) {
				if r, ok := pick(t); ok {
					delete(m.claims, r.Volume)
					m.ledger.Release(r.Claim)
				}
			},
			"a volume is deleted": func(t *rapid.T) {
				for name, size := range m.volumes {
					delete(m.volumes, name)
					m.free += size
					return
				}
			},
			"time passes": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "seconds")) * time.Second)
				for name, r := range m.claims {
					if m.now.After(r.Deadline) {
						delete(m.claims, name)
					}
				}
				if rapid.Bool().Draw(t, "swept") {
					m.ledger.Expire()
				}
			},
			"": func(t *rapid.T) {
				var open int64
				for _, r := range m.claims {
					open += roundUp(r.Bytes, 4*mib)
				}
				want := max(0, m.reported-open)
				room, ok := m.ledger.Room("n", "c")
				if !ok || room.Available != want || room.MaximumVolume != want {
					t.Fatalf("room %+v, want %d: reported %d, open reservations %d", room, want, m.reported, open)
				}
			},
		})
		// Converges: once all is settled and reported, room is the truth.
		for name := range m.claims {
			m.ledger.Release(name)
		}
		m.report()
		if room, _ := m.ledger.Room("n", "c"); room.Available != m.free {
			t.Fatalf("settled room %d, truth %d", room.Available, m.free)
		}
	})
}
