package pin

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	unplaced, here, there := pod{owner: true}, pod{owner: true, node: "a"}, pod{owner: true, node: "b"}
	for name, test := range map[string]struct {
		state
		want action
	}{
		"the Pod was just left without a node":      {state{bound: true, pods: []pod{unplaced}}, action{again: 2 * time.Second}},
		"the Pod has had no node for a second":      {state{bound: true, pods: []pod{unplaced}, unplaced: time.Second}, action{again: time.Second}},
		"the Pod's binding has failed":              {state{bound: true, pods: []pod{unplaced}, unplaced: 2 * time.Second}, action{pin: reasonUnplaced}},
		"the claim is not bound yet":                {state{pods: []pod{unplaced}, unplaced: time.Hour}, action{}},
		"the Pod is on the volume's node":           {state{bound: true, pods: []pod{here}, unplaced: time.Hour}, action{}},
		"the Pod runs, or is gone":                  {state{bound: true}, action{}},
		"the Pod is on another node":                {state{bound: true, pods: []pod{there}}, action{pin: reasonMisplaced, misplaced: []string{"b"}}},
		"the Pod is on another node all the same":   {state{bound: true, pinned: true, pods: []pod{there}}, action{misplaced: []string{"b"}}},
		"it is pinned, and the Pod waits":           {state{bound: true, pinned: true, pods: []pod{unplaced}, unplaced: time.Hour}, action{}},
		"a second Pod waits":                        {state{bound: true, pods: []pod{{}}}, action{pin: reasonShared}},
		"a second Pod is on the volume's node":      {state{bound: true, pods: []pod{here, {node: "a"}}}, action{pin: reasonShared}},
		"a second Pod is on another node":           {state{bound: true, pods: []pod{here, {node: "b"}}}, action{pin: reasonMisplaced, misplaced: []string{"b"}}},
		"Pods are on several other nodes":           {state{pods: []pod{{node: "c"}, there, {node: "c"}}}, action{pin: reasonMisplaced, misplaced: []string{"c", "b"}}},
		"its class is pinned by now":                {state{bound: true, stays: true}, action{pin: reasonStays}},
		"its class is pinned, and so is the volume": {state{bound: true, stays: true, pinned: true}, action{}},
		"its class is pinned, and a Pod is on another node": {state{bound: true, stays: true, pods: []pod{there}},
			action{pin: reasonStays, misplaced: []string{"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			test.node, test.grace = "a", 2*time.Second
			if got := decide(test.state); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// race is a volume on node a, and the components that act on it in any order. The scheduler may
// bind by data from before the volume was pinned.
type race struct {
	pinned, bound bool
	pods          []pod
	// since is the leader's record, in terms of now.
	since, now time.Duration
}

func (r *race) state() state {
	if !r.bound || r.pinned || !slices.ContainsFunc(r.pods, pod.unplacedOwner) {
		r.since = -1
	} else if r.since < 0 {
		r.since = r.now
	}
	s := state{node: "a", pinned: r.pinned, bound: r.bound, pods: r.pods, grace: grace}
	if r.since >= 0 {
		s.unplaced = r.now - r.since
	}
	return s
}

// pass is one pass of the leader.
func (r *race) pass() action {
	do := decide(r.state())
	r.pinned = r.pinned || do.pin != ""
	r.pods = slices.DeleteFunc(r.pods, func(p pod) bool { return slices.Contains(do.misplaced, p.node) })
	return do
}

func TestNoOrderOfEventsLeavesAPodWhereItsVolumeIsNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &race{since: -1, pods: []pod{{owner: true}}}
		place := func(t *rapid.T) {
			waiting := slices.IndexFunc(r.pods, func(p pod) bool { return p.node == "" })
			if waiting < 0 || !r.bound {
				t.Skip("no Pod to bind")
			}
			r.pods[waiting].node = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")
		}
		t.Repeat(map[string]func(*rapid.T){
			"bind the claim": func(*rapid.T) { r.bound = true },
			"bind a Pod":     place,
			"another Pod": func(*rapid.T) {
				if len(r.pods) < 3 {
					r.pods = append(r.pods, pod{})
				}
			},
			"a Pod starts, or is deleted": func(t *rapid.T) {
				if len(r.pods) == 0 {
					t.Skip("no Pod")
				}
				i := rapid.IntRange(0, len(r.pods)-1).Draw(t, "Pod")
				if on := r.pods[i].node; on == "b" || on == "c" {
					t.Skip("it cannot start there")
				}
				r.pods = slices.Delete(r.pods, i, i+1)
			},
			"time passes": func(t *rapid.T) { r.now += time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond },
			"a pass":      func(*rapid.T) { r.pass() },
			"a change of leader": func(*rapid.T) {
				r.since = -1
				r.pass()
			},
		})
		for range 3 { // at once, when due, and once more
			r.now += r.pass().again
		}
		for _, p := range r.pods {
			if p.node == "b" || p.node == "c" {
				t.Fatalf("a Pod waits on node %s: %+v", p.node, r)
			}
			if r.bound && !r.pinned && p != (pod{owner: true, node: "a"}) {
				t.Fatalf("Pod %+v can be bound to any node: %+v", p, r)
			}
		}
	})
}
