package scheduler

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFit(t *testing.T) {
	now := time.Unix(1000, 0)
	demand := func(claim, class string, bytes int64) Demand {
		return Demand{Claim: claim, Volume: "pvc-" + claim, Class: class, Bytes: bytes}
	}
	for name, test := range map[string]struct {
		reserved []Reservation
		demands  []Demand
		short    string // what the refusal names, empty when all fit
	}{
		"a Pod without volumes of ours fits everywhere": {},
		"two claims that fill the node together": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "c", 40*mib)}},
		"two claims that fit one by one but not together": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "c", 44*mib)}, short: `"c" has`},
		"claims of different groups do not add up": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "other", 44*mib)}},
		"claims of different classes of one group add up": {
			demands: []Demand{demand("a", "c", 60*mib), demand("b", "twin", 44*mib)}, short: `"twin" has`},
		"sizes are rounded up before they are added": {
			demands: []Demand{demand("a", "c", 48*mib+1), demand("b", "c", 52*mib)}, short: `"c" has`},
		"what others have reserved counts": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "twin", Bytes: 8 * mib, Deadline: now}},
			demands:  []Demand{demand("a", "c", 60*mib), demand("b", "c", 40*mib)}, short: `"c" has`},
		"what the claims have reserved themselves does not": {
			reserved: []Reservation{{Claim: "a", Volume: "pvc-a", Node: "n", Class: "c", Bytes: 60 * mib, Deadline: now}},
			demands:  []Demand{demand("a", "c", 60*mib), demand("b", "c", 40*mib)}},
		"what has lapsed does not": {
			reserved: []Reservation{{Claim: "x", Volume: "pvc-x", Node: "n", Class: "c", Bytes: 60 * mib, Deadline: now.Add(-1)}},
			demands:  []Demand{demand("a", "c", 100*mib)}},
		"a volume that is there already needs no room": {
			demands: []Demand{demand("there", "c", 90*mib), demand("b", "c", 40*mib)}},
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
			l.Report("n", NodeReport{Classes: []ClassReport{class("c", 100*mib), class("twin", 100*mib), other, pieces}, Volumes: counted("pvc-there")})
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
		room, _ := l.Room("n", "c")
		want, sum := true, int64(0)
		var demands []Demand
		for i, bytes := range rapid.SliceOfN(rapid.Int64Range(1, 40*mib), 0, 6).Draw(t, "sizes") {
			id := string(rune('a' + i))
			demands = append(demands, Demand{Claim: id, Volume: "pvc-" + id, Class: "c", Bytes: bytes})
			sum += roundUp(bytes, 4*mib)
			want = want && sum <= room.Available && roundUp(bytes, 4*mib) <= room.MaximumVolume
		}
		if got := l.Fit("n", demands); (got == nil) != want {
			t.Fatalf("fit: %v, want %v", got, want)
		}
		for _, d := range demands {
			l.Reserve(Reservation{Claim: d.Claim, Volume: d.Volume, Node: "n", Class: "c", Bytes: d.Bytes, Deadline: now})
		}
		if got := l.Fit("n", demands); (got == nil) != want {
			t.Fatalf("fit once the claims have reserved: %v, want %v", got, want)
		}
	})
}

func TestScore(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(fixedClock(&now))
	l.Report("empty", NodeReport{Classes: []ClassReport{class("c", 100*mib)}, Volumes: counted("1", "2", "3", "4")})
	l.Report("half", NodeReport{Classes: []ClassReport{class("c", 50*mib)}, Volumes: counted("5", "6")})
	l.Report("full", NodeReport{Classes: []ClassReport{class("c", 0)}})
	nodes := []string{"empty", "half", "full", "unknown"}
	most, least, fewest := Demand{Class: "c", Policy: MostFree}, Demand{Class: "c", Policy: LeastFree}, Demand{Class: "c", Policy: FewestVolumes}
	for name, test := range map[string]struct {
		demands []Demand
		want    [3]int64
	}{
		"most-free":                         {[]Demand{most}, [3]int64{10, 5, 0}},
		"least-free":                        {[]Demand{least}, [3]int64{0, 5, 10}},
		"fewest-volumes":                    {[]Demand{fewest}, [3]int64{0, 5, 10}},
		"two policies are averaged":         {[]Demand{most, fewest}, [3]int64{5, 5, 5}},
		"a class that nobody has":           {[]Demand{{Class: "nope"}}, [3]int64{0, 0, 0}},
		"a Pod without volumes of ours":     {nil, [3]int64{0, 0, 0}},
		"the default policy is most-free":   {[]Demand{{Class: "c"}}, [3]int64{10, 5, 0}},
		"nobody has it, and somebody has c": {[]Demand{{Class: "nope"}, most}, [3]int64{5, 2, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got := l.Score(nodes, test.demands, 10)
			if got["unknown"] != 0 || [3]int64{got["empty"], got["half"], got["full"]} != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestAShareOfHugeSizesDoesNotOverflow(t *testing.T) {
	if got := share(math.MaxInt64, math.MaxInt64, 10); got != 10 {
		t.Errorf("all is %d", got)
	}
	if got := share(math.MaxInt64/2, math.MaxInt64, 10); got != 4 {
		t.Errorf("just under half is %d", got)
	}
}
