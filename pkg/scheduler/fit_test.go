package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFit(t *testing.T) {
	now := time.Unix(1000, 0)
	demand := func(claim, class string, bytes int64) Demand {
		return Demand{Claim: claim, Class: class, Bytes: bytes}
	}
	for name, test := range map[string]struct {
		reserved []Reservation
		demands  []Demand
		short    string // expected in the error; empty if all fit
	}{
		"a Pod without volumes of ours fits everywhere": {},
		"two claims that fill the node together": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "c", 40*mib)}},
		"two claims that fit one by one but not together": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "c", 44*mib)}, short: `"c" has`},
		"claims of different groups do not add up": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "other", 44*mib)}},
		"claims of different classes of one group add up": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "twin", 44*mib)}, short: `"c" has`},
		"sizes are rounded up before they are added": {
			demands: []Demand{demand("a", "c", 48*mib+1), demand("b", "c", 52*mib)}, short: `"c" has`},
		"a large volume after a mirrored one, with what the mirrors take": {
			demands: []Demand{demand("a", "mirrored", 300*mib), demand("b", "plain", 600*mib)}, short: `"mirrored" has 196Mi left for one of 300Mi`},
		"a mirrored volume after a large one": {
			demands: []Demand{demand("a", "plain", 600*mib), demand("b", "mirrored", 300*mib)}, short: `"mirrored" has`},
		"a mirrored volume and all that it leaves": {
			demands: []Demand{demand("a", "plain", 392*mib), demand("b", "mirrored", 300*mib)}},
		"two mirrored volumes, each with its bookkeeping": {
			demands: []Demand{demand("a", "mirrored", 248*mib), demand("b", "mirrored", 248*mib)}, short: `"mirrored" has 244Mi left for one of 248Mi`},
		"two mirrored volumes that fill the group": {
			demands: []Demand{demand("a", "mirrored", 248*mib), demand("b", "mirrored", 244*mib)}},
		"what others have reserved for mirrors counts once": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "mirrored", Bytes: 200 * mib, Deadline: now}},
			demands:  []Demand{demand("a", "mirrored", 200*mib)}},
		"what others have reserved for mirrors counts with its bookkeeping": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "mirrored", Bytes: 200 * mib, Deadline: now}},
			demands:  []Demand{demand("a", "mirrored", 200*mib), demand("b", "plain", 188*mib)}, short: `"mirrored" has`},
		"what others have reserved counts": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "twin", Bytes: 8 * mib, Deadline: now}},
			demands:  []Demand{demand("a", "c", 60*mib), demand("b", "c", 40*mib)}, short: `"c" has`},
		"what has lapsed does not": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "c", Bytes: 60 * mib, Deadline: now.Add(-1)}},
			demands:  []Demand{demand("a", "c", 100*mib)}},
		"a volume larger than the largest possible does not fit": {
			demands: []Demand{demand("a", "pieces", 12*mib)}, short: `"pieces" has`},
		"a class that the node does not have": {
			demands: []Demand{demand("a", "nope", mib)}, short: `does not have device class "nope"`},
		"sizes that overflow do not fit": {
			demands: []Demand{demand("a", "c", math.MaxInt64), demand("b", "c", math.MaxInt64)}, short: `"c" has`},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(fixedClock(&now))
			other, pieces := class("other", 50*mib), class("pieces", 100*mib)
			other.Group, pieces.Group, pieces.MaximumVolume = "vg2", "vg3", 8*mib
			plain, mirrored := class("plain", 1000*mib), class("mirrored", 496*mib)
			plain.Group, mirrored.Group, mirrored.UnitCost, mirrored.VolumeCost = "vg4", "vg4", 8*mib, 8*mib
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib), class("twin", 100*mib), other, pieces, plain, mirrored}})
			for _, r := range test.reserved {
				l.Reserve(r)
			}
			err := l.Fit("n", test.demands)
			if (err == nil) != (test.short == "") || err != nil && (!strings.Contains(err.Error(), test.short) || !strings.Contains(err.Error(), "node n ")) {
				t.Errorf("got %v, want %q", err, test.short)
			}
		})
	}
	if err := NewLedger(time.Now).Fit("n", nil); err == nil {
		t.Error("a node that never reported fits")
	}
}

func TestAPodFitsWhereItsSumDoesAndEachOfItsVolumes(t *testing.T) {
	now := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(fixedClock(&now))
		c := class("c", rapid.Int64Range(0, 60).Draw(t, "available")*4*mib)
		c.MaximumVolume = rapid.Int64Range(0, c.Available/mib).Draw(t, "maximum") * mib
		l.Report("n", NodeReport{Classes: []ClassReport{c}})
		l.Reserve(Reservation{Claim: "other", Volume: "pvc-other", Node: "n", Class: "c", Deadline: now,
			Bytes: rapid.Int64Range(0, 20*mib).Draw(t, "reserved")})
		free, _ := l.FreeSpace("n", "c")
		want, sum := true, int64(0)
		var demands []Demand
		for i, bytes := range rapid.SliceOfN(rapid.Int64Range(1, 40*mib), 0, 6).Draw(t, "sizes") {
			id := string(rune('a' + i))
			demands = append(demands, Demand{Claim: id, Class: "c", Bytes: bytes})
			sum += roundUp(bytes, 4*mib)
			want = want && sum <= free.Available && roundUp(bytes, 4*mib) <= free.MaximumVolume
		}
		if got := l.Fit("n", demands); (got == nil) != want {
			t.Fatalf("fit: %v, want %v", got, want)
		}
	})
}

func permute(demands []Demand, f func([]Demand)) {
	var from func(int)
	from = func(i int) {
		if i == len(demands) {
			f(demands)
		}
		for j := i; j < len(demands); j++ {
			demands[i], demands[j] = demands[j], demands[i]
			from(i + 1)
			demands[i], demands[j] = demands[j], demands[i]
		}
	}
	from(0)
}

func TestAPodFitsWhereItsVolumesDoOneAfterAnotherInAnyOrder(t *testing.T) {
	now := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		n := &realNode{free: map[string]int64{"shared": rapid.Int64Range(0, 50).Draw(t, "shared") * 2 * mib, "own": rapid.Int64Range(0, 10).Draw(t, "own") * 4 * mib},
			volumes: map[string]realVolume{}}
		volume := func(id string) Demand {
			return Demand{Claim: id, Class: rapid.SampledFrom(slices.Sorted(maps.Keys(groups))).Draw(t, "class"),
				Bytes: rapid.Int64Range(1, 20*mib).Draw(t, "bytes")}
		}
		ledgerWith := func(taken []Demand) *Ledger {
			l := NewLedger(fixedClock(&now))
			l.Report("n", n.snapshot())
			for _, d := range taken {
				l.Reserve(Reservation{Claim: d.Claim, Volume: "pvc-" + d.Claim, Node: "n", Class: d.Class, Bytes: d.Bytes, Deadline: now})
			}
			return l
		}
		var others, demands []Demand
		for i := range rapid.IntRange(0, 2).Draw(t, "others") {
			others = append(others, volume(fmt.Sprint("other", i)))
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "demands") {
			demands = append(demands, volume(fmt.Sprint("claim", i)))
		}
		// fits reserves one demand after another, besides those of others, in every order. It does
		// not assume that any two lie in the same stretch of space.
		fits := func(others []Demand) bool {
			all := true
			permute(slices.Clone(demands), func(order []Demand) {
				l := ledgerWith(others)
				for _, d := range order {
					c, _ := findClass(n.classes(), d.Class)
					first, _ := ledgerWith(others).FreeSpace("n", d.Class)
					free, _ := l.FreeSpace("n", d.Class)
					all = all && c.size(d.Bytes) <= free.Available && c.size(d.Bytes) <= first.MaximumVolume
					l.Reserve(Reservation{Claim: d.Claim, Volume: "pvc-" + d.Claim, Node: "n", Class: d.Class, Bytes: d.Bytes, Deadline: now})
				}
			})
			return all
		}
		want, alone := fits(others), fits(nil)
		permute(slices.Clone(demands), func(order []Demand) {
			l := ledgerWith(others)
			if got := l.Fit("n", order); (got == nil) != want {
				t.Fatalf("fit of %+v beside %+v: %v, want %v", order, others, got, want)
			}
			if got := l.FitAlone("n", order); (got == nil) != alone {
				t.Fatalf("fit of %+v alone: %v, want %v", order, got, alone)
			}
		})
	})
}

func TestAPodFitsWhereItsGroupsHoldAllThatItsVolumesTake(t *testing.T) {
	now := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		// Whole units of the coarsest layout, so that every class's report covers all of it.
		free := rapid.Int64Range(1, 60).Draw(t, "free") * 8 * mib
		plain, mirrored := class("plain", free), class("mirrored", (free-8*mib)/2)
		mirrored.UnitCost, mirrored.VolumeCost = 8*mib, 8*mib
		l := NewLedger(fixedClock(&now))
		l.Report("n", NodeReport{Classes: []ClassReport{plain, mirrored}})
		var taken int64
		var demands []Demand
		take := func(what string) Demand {
			c := rapid.SampledFrom([]string{"plain", "mirrored"}).Draw(t, "class of "+what)
			units := rapid.Int64Range(1, 30).Draw(t, "units of "+what)
			if taken += units * 4 * mib; c == "mirrored" {
				taken += units*4*mib + 8*mib
			}
			return Demand{Claim: what, Class: c, Bytes: units*4*mib - rapid.Int64Range(0, 4*mib-1).Draw(t, "less")}
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "others") {
			d := take(fmt.Sprint("other ", i))
			l.Reserve(Reservation{Claim: d.Claim, Volume: "pvc-" + d.Claim, Node: "n", Class: d.Class, Bytes: d.Bytes, Deadline: now})
		}
		for i := range rapid.IntRange(1, 4).Draw(t, "demands") {
			demands = append(demands, take(fmt.Sprint("claim ", i)))
		}
		if got := l.Fit("n", demands); (got == nil) != (taken <= free) {
			t.Fatalf("fit of %+v: %v; all takes %d of %d", demands, got, taken, free)
		}
	})
}

func TestAShortErrorNamesTheLargestDemandAndTheOthers(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(fixedClock(&now))
	twin, other := class("twin", 100*mib), class("other", 100*mib)
	twin.Default, other.Group = true, "vg2"
	l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib), twin, other}})
	l.Reserve(Reservation{Claim: "x", Volume: "pvc-x", Node: "n", Class: "c", Bytes: 99 * mib, Deadline: now})
	small, large, far := Demand{Claim: "a", Class: "c", Bytes: 33 * mib}, Demand{Claim: "b", Bytes: 70 * mib}, Demand{Claim: "d", Class: "other", Bytes: mib}
	var short *ShortError
	if err := l.FitAlone("n", []Demand{small, large, far}); !errors.As(err, &short) {
		t.Fatalf("got %v, want a %T", err, short)
	}
	if want := (&ShortError{Node: "n", Class: "twin", Bytes: 72 * mib, Left: 64 * mib, Beside: []Demand{small}}); !reflect.DeepEqual(short, want) {
		t.Errorf("got %+v, want %+v", short, want)
	}
}
