package scheduler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is the reality behind the reports: nodes that create and delete volumes, reports in
// transit, and claims. It passes every step to the ledger through reports that may be lost,
// repeated or overtaken.
type world struct {
	t      *rapid.T
	ledger *Ledger
	now    time.Time
	nodes  map[string]*realNode
	// claims holds the claims that reserve, by the world's own accounting.
	claims map[string]Reservation
	next   int
}

// realNode has two groups. "shared" has the classes "small" (the default) and "large", which differ
// in granularity, and "mirrored", whose volumes take their size twice, plus a unit of bookkeeping
// for each half. "own" has the class "own".
type realNode struct {
	epoch      int
	generation uint64
	free       map[string]int64
	volumes    map[string]realVolume
	// sent holds reports of this epoch that may still arrive.
	sent []NodeReport
	// known is the latest report that arrived, nil if none.
	known *NodeReport
}

type realVolume struct {
	group string
	bytes int64
}

var groups = map[string]string{"": "shared", "small": "shared", "large": "shared", "mirrored": "shared", "own": "own"}

func (n *realNode) classes() []ClassReport {
	describe := func(name, group string, minimum, unit int64) ClassReport {
		return ClassReport{Name: name, Default: name == "small", Group: group, Total: 200 * mib,
			Available: n.free[group], MaximumVolume: n.free[group] / unit * unit, MinimumVolume: minimum, AllocationUnit: unit}
	}
	mirrored := describe("mirrored", "shared", 2*mib, 2*mib)
	mirrored.UnitCost, mirrored.VolumeCost = 4*mib, 2*mib
	mirrored.Available = offers("mirrored", n.free["shared"])
	mirrored.MaximumVolume = mirrored.Available
	return []ClassReport{describe("small", "shared", 0, mib), describe("large", "shared", 8*mib, 4*mib), mirrored, describe("own", "own", 0, 4*mib)}
}

// offers returns the sum of volumes that a class offers when free bytes of its group are free.
func offers(class string, free int64) int64 {
	if class == "mirrored" {
		return max(0, (free-2*mib)/(4*mib)*(2*mib))
	}
	return free
}

func takes(class string, bytes int64) int64 {
	switch class {
	case "large":
		return roundUp(max(bytes, 8*mib), 4*mib)
	case "mirrored":
		return saturatingAdd(saturatingMultiply(roundUp(max(bytes, 2*mib), 2*mib), 2), 2*mib)
	case "own":
		return roundUp(bytes, 4*mib)
	}
	return roundUp(bytes, mib)
}

func (n *realNode) snapshot() NodeReport {
	r := NodeReport{Epoch: fmt.Sprint("epoch ", n.epoch), Generation: n.generation, Classes: n.classes(), Volumes: map[string]struct{}{}}
	for name := range n.volumes {
		r.Volumes[name] = struct{}{}
	}
	return r
}

func (n *realNode) changed() {
	n.generation++
	n.sent = append(n.sent, n.snapshot())
}

func (w *world) arrive(name string, r NodeReport) {
	w.ledger.Report(name, r)
	n := w.nodes[name]
	if n.known != nil && n.known.Epoch == r.Epoch && n.known.Generation > r.Generation {
		return // overtaken
	}
	n.known = &r
	for claim, res := range w.claims {
		if _, counted := r.Volumes[res.Volume]; counted && res.Node == name {
			delete(w.claims, claim)
		}
	}
}

func (w *world) reserve(r Reservation) {
	r.Deadline = w.now.Add(time.Minute)
	w.ledger.Reserve(r)
	delete(w.claims, r.Claim)
	if n := w.nodes[r.Node]; n.known != nil {
		if _, counted := n.known.Volumes[r.Volume]; counted {
			return
		}
	}
	w.claims[r.Claim] = r
}

func (w *world) anyClaim() (Reservation, bool) {
	if len(w.claims) == 0 {
		return Reservation{}, false
	}
	return w.claims[rapid.SampledFrom(slices.Sorted(maps.Keys(w.claims))).Draw(w.t, "claim")], true
}

func (w *world) anyNode() string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.nodes))).Draw(w.t, "node")
}

func (w *world) anyClass() string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(groups))).Draw(w.t, "class")
}

func (w *world) steps() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"a claim chooses a node": func(t *rapid.T) {
			w.next++
			id := fmt.Sprint("claim-", w.next)
			bytes := rapid.OneOf(rapid.Int64Range(1, 40*mib), rapid.Just[int64](math.MaxInt64/2)).Draw(t, "bytes")
			w.reserve(Reservation{Claim: id, Volume: "pvc-" + id, Node: w.anyNode(), Class: w.anyClass(), Bytes: bytes})
		},
		"a claim is seen again, as it was or with another size, class or node": func(t *rapid.T) {
			r, ok := w.anyClaim()
			if !ok {
				return
			}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 1:
				r.Bytes = rapid.Int64Range(1, 40*mib).Draw(t, "bytes")
			case 2:
				r.Class = w.anyClass()
			case 3:
				r.Node = w.anyNode()
			}
			w.reserve(r)
		},
		"a claim is given up": func(*rapid.T) {
			if r, ok := w.anyClaim(); ok {
				delete(w.claims, r.Claim)
				w.ledger.Release(r.Claim)
			}
		},
		"a node makes a volume": func(*rapid.T) {
			r, ok := w.anyClaim()
			if !ok {
				return
			}
			n, group, size := w.nodes[r.Node], groups[r.Class], takes(r.Class, r.Bytes)
			if _, exists := n.volumes[r.Volume]; exists || size > n.free[group] {
				return
			}
			n.volumes[r.Volume] = realVolume{group, size}
			n.free[group] -= size
			n.changed()
		},
		"a volume is deleted": func(t *rapid.T) {
			n := w.nodes[w.anyNode()]
			if len(n.volumes) == 0 {
				return
			}
			name := rapid.SampledFrom(slices.Sorted(maps.Keys(n.volumes))).Draw(t, "volume")
			n.free[n.volumes[name].group] += n.volumes[name].bytes
			delete(n.volumes, name)
			n.changed()
		},
		"a report arrives, perhaps for the second time, perhaps overtaken by others": func(t *rapid.T) {
			name := w.anyNode()
			if n := w.nodes[name]; len(n.sent) > 0 {
				w.arrive(name, n.sent[rapid.IntRange(0, len(n.sent)-1).Draw(t, "report")])
			}
		},
		"reports are lost": func(*rapid.T) { w.nodes[w.anyNode()].sent = nil },
		"a node's agent starts anew": func(*rapid.T) {
			n := w.nodes[w.anyNode()]
			n.epoch, n.generation, n.sent = n.epoch+1, 0, nil
			n.changed()
		},
		"a node is forgotten": func(*rapid.T) {
			name := w.anyNode()
			w.ledger.Forget(name)
			w.nodes[name].known = nil
		},
		"another replica takes over": func(*rapid.T) {
			w.ledger.ReleaseAll()
			for _, r := range w.claims {
				w.reserve(r)
			}
		},
		"time passes": func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "seconds")) * time.Second)
			grew := map[string]struct{}{}
			for claim, r := range w.claims {
				if w.now.After(r.Deadline) {
					delete(w.claims, claim)
					grew[r.Node] = struct{}{}
				}
			}
			for node := range grew {
				if rapid.Bool().Draw(t, "looked at first") {
					w.ledger.FreeSpace(node, "small")
				}
			}
			if due := w.ledger.Expire(); !slices.Equal(due, slices.Sorted(maps.Keys(grew))) {
				t.Fatalf("Expire returned %v, grown are %v", due, grew)
			}
		},
		"candidates are asked for": w.checkCandidates,
		"":                         func(t *rapid.T) { w.check(t) },
	}
}

func (w *world) check(t *rapid.T) {
	if got := w.ledger.Reservations(); got != len(w.claims) {
		t.Fatalf("%d reservations, want %d", got, len(w.claims))
	}
	for name, n := range w.nodes {
		for class, group := range groups {
			free, ok := w.ledger.FreeSpace(name, class)
			if ok != (n.known != nil) {
				t.Fatalf("free space of %s known: %v", name, ok)
			}
			if !ok {
				continue
			}
			c, _ := findClass(n.known.Classes, class)
			var taken int64
			for _, r := range w.claims {
				if r.Node != name || groups[r.Class] != group {
					continue
				}
				if _, counted := n.known.Volumes[r.Volume]; counted {
					t.Fatalf("%s is reserved and counted", r.Volume)
				}
				taken = saturatingAdd(taken, takes(r.Class, r.Bytes))
			}
			less := taken
			if class == "mirrored" {
				less = saturatingAdd(taken, 4*mib-1) / (4 * mib) * (2 * mib)
			}
			wantAvailable, wantMaximum := c.Available-min(c.Available, less), c.MaximumVolume-min(c.MaximumVolume, less)
			if wantMaximum -= wantMaximum % c.AllocationUnit; wantMaximum < c.MinimumVolume {
				wantMaximum = 0
			}
			// The group must hold the offered space besides all reservations.
			whole, _ := findClass(n.known.Classes, group)
			if group == "shared" {
				whole, _ = findClass(n.known.Classes, "small")
			}
			if most := free.MaximumVolume; most > 0 && saturatingAdd(taken, takes(class, most)) > whole.Available {
				t.Fatalf("class %q of %s offers %d, which takes %d; %d are taken, of %d", class, name, most, takes(class, most), taken, whole.Available)
			}
			if free.Available < 0 || free.MaximumVolume < 0 {
				t.Fatalf("free space of class %q of %s is negative: %+v", class, name, free)
			}
			if free.Available != wantAvailable || free.MaximumVolume != wantMaximum {
				t.Fatalf("free space of class %q of %s: %+v, want %d and %d; reported %+v, claims %+v",
					class, name, free, wantAvailable, wantMaximum, c, w.claims)
			}
		}
	}
}

func (w *world) checkCandidates(t *rapid.T) {
	least := rapid.SampledFrom([]int64{0, 1, 4 * mib, 100 * mib, 200 * mib, math.MaxInt64}).Draw(t, "least")
	for class := range groups {
		got := map[string]FreeSpace{}
		for _, c := range w.ledger.Candidates(class, least) {
			got[c.Node] = c.FreeSpace
		}
		want := map[string]FreeSpace{}
		for name := range w.nodes {
			if free, ok := w.ledger.FreeSpace(name, class); ok && free.Available >= least && free.MaximumVolume >= least {
				want[name] = free
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("candidates in class %q for at least %d: got %v, want %v", class, least, got, want)
		}
	}
}

// finish lets every node report and every claim end, and expects the real free space.
func (w *world) finish(t *rapid.T) {
	for _, claim := range slices.Sorted(maps.Keys(w.claims)) {
		delete(w.claims, claim)
		w.ledger.Release(claim)
	}
	for name, n := range w.nodes {
		n.changed()
		w.arrive(name, n.snapshot())
	}
	w.check(t)
	for name, n := range w.nodes {
		for class, group := range groups {
			if free, ok := w.ledger.FreeSpace(name, class); !ok || free.Available != offers(class, n.free[group]) {
				t.Fatalf("free space in the end of class %q of %s: %+v, truth %d", class, name, free, n.free[group])
			}
		}
	}
}

func TestTheLedgerIsRightAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, now: time.Unix(1000, 0), nodes: map[string]*realNode{}, claims: map[string]Reservation{}}
		w.ledger = NewLedger(func() time.Time { return w.now })
		for _, name := range []string{"n1", "n2"} {
			n := &realNode{free: map[string]int64{"shared": 200 * mib, "own": 200 * mib}, volumes: map[string]realVolume{}}
			w.nodes[name] = n
			n.changed()
		}
		t.Repeat(w.steps())
		w.finish(t)
	})
}

func TestASumGivesBackWhatWasAddedHoweverMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOf(rapid.Int64Range(0, math.MaxInt64)).Draw(t, "sizes")
		var s sum
		s.add(7)
		for _, n := range sizes {
			s.add(n)
			if s.saturated() < n {
				t.Fatalf("sum %d is less than %d", s.saturated(), n)
			}
		}
		for _, n := range sizes {
			s.sub(n)
		}
		if s.saturated() != 7 {
			t.Fatalf("%d is left, want 7", s.saturated())
		}
	})
}
