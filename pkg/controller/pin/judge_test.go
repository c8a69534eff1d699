package pin

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/scheduler"
)

// disks returns the ledger of nodes with the given free bytes each in the class "local".
func disks(free map[string]int64) *scheduler.Ledger {
	l := scheduler.NewLedger(time.Now)
	for name, bytes := range free {
		l.Report(name, scheduler.NodeReport{Classes: []scheduler.ClassReport{{Name: "local", Default: true, Group: "vg", Total: bytes, Available: bytes, MaximumVolume: bytes}}})
	}
	return l
}

func named(names ...string) (out []*v1.Node) {
	for _, name := range names {
		out = append(out, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return out
}

// on returns a candidate with a Pod per size that can be bound to any other node. The volumes are
// named after the candidate and the size.
func on(node string, elsewhere []*v1.Node, sizes ...int64) candidate {
	c := candidate{Node: named(node)[0], pods: map[types.UID]*resident{}}
	for i, size := range sizes {
		c.pods[types.UID(fmt.Sprint(i))] = &resident{volumes: []string{fmt.Sprint(node, size)}, demands: []scheduler.Demand{{Bytes: size}},
			elsewhere: slices.DeleteFunc(slices.Clone(elsewhere), func(n *v1.Node) bool { return n.Name == node })}
	}
	return c
}

func (c candidate) with(change func(*candidate)) candidate { change(&c); return c }

func TestJudge(t *testing.T) {
	all := named("a", "b", "c", "d")
	kept := func(c *candidate) { c.kept = true }
	for name, test := range map[string]struct {
		free       map[string]int64
		change     func(*scheduler.Ledger)
		candidates []candidate
		want       map[string][]string
	}{
		"none is marked":                 {free: map[string]int64{"a": 9}},
		"a node without volumes":         {free: map[string]int64{"a": 9}, candidates: []candidate{on("a", all)}},
		"another node has the space":     {free: map[string]int64{"b": 9}, candidates: []candidate{on("a", all, 9)}},
		"no other node has the space":    {free: map[string]int64{"a": 99, "b": 8}, candidates: []candidate{on("a", all, 9)}, want: map[string][]string{"a": {"a9"}}},
		"several nodes have the space":   {free: map[string]int64{"b": 5, "c": 4}, candidates: []candidate{on("a", all, 3, 5)}},
		"the largest is placed first":    {free: map[string]int64{"b": 5, "c": 4}, candidates: []candidate{on("a", all, 4, 5)}},
		"each would fit, but not both":   {free: map[string]int64{"b": 6}, candidates: []candidate{on("a", all, 4, 5)}, want: map[string][]string{"a": {"a4"}}},
		"a node that cannot take Pods":   {free: map[string]int64{"b": 9, "c": 3}, candidates: []candidate{on("a", named("c"), 4)}, want: map[string][]string{"a": {"a4"}}},
		"no other node is left":          {free: map[string]int64{"a": 9, "b": 9}, candidates: []candidate{on("a", all), on("b", all, 4)}, want: map[string][]string{"b": {"b4"}}},
		"two nodes, one space":           {free: map[string]int64{"a": 1, "b": 1, "c": 6}, candidates: []candidate{on("a", all, 4), on("b", all, 5)}, want: map[string][]string{"b": {"b5"}}},
		"one that stays takes others":    {free: map[string]int64{"a": 9, "b": 9, "c": 3}, candidates: []candidate{on("a", all, 4), on("b", all, 5)}, want: map[string][]string{"a": {"a4"}}},
		"what does not leave is no load": {free: map[string]int64{"b": 0, "c": 6}, candidates: []candidate{on("a", all, 6, 7), on("b", all, 5)}, want: map[string][]string{"a": {"a7"}}},
		"a kept node takes others":       {free: map[string]int64{"a": 5, "b": 5}, candidates: []candidate{on("a", all).with(kept), on("b", all, 5)}},
		"a kept node's other volumes are none to move": {free: map[string]int64{"a": 0, "b": 0, "c": 5},
			candidates: []candidate{on("a", all, 5).with(kept), on("b", all, 5)}},
		"a kept node's other volumes are judged": {free: map[string]int64{"b": 4}, candidates: []candidate{on("a", all, 5).with(kept)}, want: map[string][]string{"a": {"a5"}}},
		"a Pod's volumes go together": {free: map[string]int64{"b": 5, "c": 5}, want: map[string][]string{"a": {"a4", "second"}},
			candidates: []candidate{on("a", all, 4).with(func(c *candidate) {
				c.pods["0"].volumes, c.pods["0"].demands = append(c.pods["0"].volumes, "second"), append(c.pods["0"].demands, scheduler.Demand{Bytes: 2})
			})}},
		"claims have reserved it": {free: map[string]int64{"b": 9}, want: map[string][]string{"a": {"a4"}}, candidates: []candidate{on("a", all, 4)},
			change: func(l *scheduler.Ledger) {
				l.Reserve(scheduler.Reservation{Claim: "x", Volume: "pvc-x", Node: "b", Bytes: 6, Deadline: time.Now().Add(time.Hour)})
			}},
		"the other node is held back": {free: map[string]int64{"b": 9}, want: map[string][]string{"a": {"a4"}}, candidates: []candidate{on("a", all, 4)},
			change: func(l *scheduler.Ledger) { l.Hold("b", "", true) }},
		"the other node has not the class": {free: map[string]int64{"b": 9}, want: map[string][]string{"a": {"a4"}},
			candidates: []candidate{on("a", all, 4).with(func(c *candidate) { c.pods["0"].demands[0].Class = "fast" })}},
	} {
		t.Run(name, func(t *testing.T) {
			l := disks(test.free)
			if test.change != nil {
				test.change(l)
			}
			if short, _ := judge(test.candidates, l); !maps.EqualFunc(short, test.want, slices.Equal) {
				t.Errorf("%v find no space, want %v", short, test.want)
			}
		})
	}
}

func TestWhatJudgeLetsLeaveFitsWhereItIsPlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := named("a", "b", "c", "d", "e")
		free := map[string]int64{}
		var candidates []candidate
		for _, node := range all {
			free[node.Name] = rapid.Int64Range(0, 20).Draw(t, "free on "+node.Name)
			if rapid.Bool().Draw(t, node.Name+" is marked") {
				c := on(node.Name, all, rapid.SliceOfNDistinct(rapid.Int64Range(1, 12), 0, 4, rapid.ID).Draw(t, "volumes on "+node.Name)...)
				candidates = append(candidates, c.with(func(c *candidate) { c.kept = rapid.Bool().Draw(t, node.Name+" is kept") }))
			}
		}
		l := disks(free)
		short, placed := judge(candidates, l)
		var leave, moved int64
		for _, c := range candidates {
			var volumes []string
			for _, pod := range c.pods {
				volumes = append(volumes, pod.volumes...)
			}
			for _, name := range short[c.Name] {
				if !slices.Contains(volumes, name) {
					t.Fatalf("%s has no volume %s", c.Name, name)
				}
			}
			if c.kept || len(short[c.Name]) > 0 {
				continue
			}
			for _, pod := range c.pods {
				leave += pod.bytes()
			}
			if placed[c.Name] != nil {
				t.Fatalf("%v are placed on %s, which leaves", placed[c.Name], c.Name)
			}
		}
		for node, demands := range placed {
			if err := l.Fit(node, demands); err != nil {
				t.Fatal(err)
			}
			moved += (&resident{demands: demands}).bytes()
		}
		if moved != leave {
			t.Fatalf("%d bytes leave, %d are placed", leave, moved)
		}
	})
}

type counting struct {
	Disks
	asked int
}

func (c *counting) Fit(node string, demands []scheduler.Demand) error {
	c.asked++
	return c.Disks.Fit(node, demands)
}

func TestPodsThatAskForTheSameOfTheSameNodesAreTriedOnEachOnce(t *testing.T) {
	free, elsewhere := map[string]int64{}, []*v1.Node(nil)
	for i := range 1000 {
		name := fmt.Sprintf("n%03d", i)
		free[name], elsewhere = 9, append(elsewhere, named(name)...)
	}
	all := on("a", elsewhere, slices.Repeat([]int64{5}, 1100)...)
	for _, pod := range all.pods {
		pod.elsewhere = elsewhere
	}
	c := &counting{Disks: disks(free)}
	// Each node has the space for one of them.
	if short, _ := judge([]candidate{all}, c); len(short["a"]) != 100 || c.asked > 2100 {
		t.Errorf("%d find no space and %d were tried, want 100, and 2,100 at most", len(short["a"]), c.asked)
	}
}
