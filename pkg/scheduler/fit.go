package scheduler

import (
	"fmt"
	"maps"
	"math/bits"

	"github.com/carve-csi/carve/pkg/quantity"
)

// Demand is one volume that a Pod still needs.
type Demand struct {
	// Claim is the claim's UID, or empty when it is not known yet, and Volume
	// the name under which a node will report the volume.
	Claim, Volume string
	// Class is the device class, empty for each node's default one; Bytes the
	// size asked for.
	Class string
	Bytes int64
	// StorageClass and Size are what published capacity is compared with: Size is Bytes without what the volume takes
	// besides. The ledger asks for neither.
	StorageClass string
	Size         int64
	// Policy says which nodes the claim's StorageClass prefers.
	Policy Policy
	// Node is the only node that can give the Pod this volume, for it is there. Of such a demand,
	// nothing else counts. Empty for a volume that is to be made.
	Node string
}

// ShortError says that a node cannot take volumes together.
type ShortError struct {
	// Node is the node, Class the device class of the largest volume that finds
	// too little free space, under the name by which the node knows it.
	Node, Class string
	// Bytes is what that volume asks of the class, rounded up, and Left what
	// there is for it beside the others.
	Bytes, Left int64
	// Beside are the other demands that draw on the same group.
	Beside []Demand
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("node %s has too little free space for all of the Pod's volumes: device class %q has %s left for one of %s, beside the others and what is reserved",
		e.Node, e.Class, quantity.Bytes(e.Left), quantity.Bytes(e.Bytes))
}

// HeldError says that nothing new is to be placed in a device class of a node.
type HeldError struct {
	Node, Class string
	// Why is what Hold was called with.
	Why string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("nothing is placed on node %s in device class %q at present: %s", e.Node, e.Class, e.Why)
}

// UnreportedError says that a node has not reported what it has.
type UnreportedError struct {
	Node string
}

func (e *UnreportedError) Error() string {
	return fmt.Sprintf("node %s has not reported its capacity", e.Node)
}

// Fit returns nil when a node can take all of the demands together, in whatever
// order they come, or else why not: a *ShortError when it is for want of free space, an
// *UnreportedError when nothing is known of the node.
// What the claims have reserved on the node already is not counted against them,
// nor is a volume that exists there; these also do not suffer from Hold, which is
// otherwise a *HeldError.
func (l *Ledger) Fit(name string, demands []Demand) error {
	return l.fit(name, demands, false)
}

// FitAlone is Fit as though nothing else were reserved, and nothing were held.
func (l *Ledger) FitAlone(name string, demands []Demand) error {
	return l.fit(name, demands, true)
}

func (l *Ledger) fit(name string, demands []Demand, alone bool) error {
	for _, d := range demands {
		if d.Node != "" && d.Node != name {
			return fmt.Errorf("node %s does not have the volume of the Pod that is on node %s", name, d.Node)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil || !n.reported {
		return &UnreportedError{Node: name}
	}
	l.lapse(name, n)
	others := map[string]sum{} // what they have reserved, by group
	if !alone {
		for group, s := range n.reserved {
			others[group] = *s
		}
	}
	type volume struct {
		Demand
		class      ClassReport
		size, cost int64
	}
	var open []volume
	for _, d := range demands {
		if _, exists := n.report.Volumes[d.Volume]; exists || d.Node != "" {
			continue
		}
		c, ok := findClass(n.report.Classes, d.Class)
		if !ok {
			return fmt.Errorf("node %s does not have device class %q", name, d.Class)
		}
		if why := l.holds(name, c.Name); why != "" && n.claims[d.Claim] == nil && !alone {
			return &HeldError{Node: name, Class: c.Name, Why: why}
		}
		open = append(open, volume{d, c, c.size(d.Bytes), c.cost(d.Bytes)})
		if e := n.claims[d.Claim]; e != nil && e.charged && !alone {
			s := others[e.group]
			s.sub(e.bytes)
			others[e.group] = s
		}
	}
	all := maps.Clone(others)
	for _, v := range open {
		s := all[v.class.Group]
		s.add(v.cost)
		all[v.class.Group] = s
	}
	short, left := -1, int64(0)
	for i, v := range open {
		before, beside := others[v.class.Group], all[v.class.Group]
		beside.sub(v.cost)
		// As in FreeSpace, what others wait for may come out of the largest stretch
		// of space; the Pod's own volumes may each take another one.
		free := min(v.class.freeSpace(before.saturated()).MaximumVolume, v.class.freeSpace(beside.saturated()).Available)
		if v.size > free && (short < 0 || v.cost > open[short].cost) {
			short, left = i, free
		}
	}
	if short < 0 {
		return nil
	}
	class := open[short].class
	err := &ShortError{Node: name, Class: class.Name, Bytes: open[short].size, Left: left}
	for i, v := range open {
		if i != short && v.class.Group == class.Group {
			err.Beside = append(err.Beside, v.Demand)
		}
	}
	return err
}

// Score rates nodes for the demands, 0 to most, by the policies of the
// demands: the best node of a policy gets most, the worst 0, the others what
// lies between; nodes that do not differ, and unknown ones, get 0. Of several
// demands it is the mean.
func (l *Ledger) Score(nodes []string, demands []Demand, most int64) map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]int64, len(nodes))
	values := make([]int64, len(nodes))
	known := make([]bool, len(nodes))
	for _, d := range demands {
		if d.Node != "" {
			continue
		}
		low, high, found := int64(0), int64(0), false
		for i, name := range nodes {
			free, ok := l.freeSpace(name, d.Class)
			if known[i] = ok; !ok {
				continue
			}
			switch d.Policy {
			case LeastFree:
				values[i] = -free.Available
			case FewestVolumes:
				values[i] = -int64(len(l.nodes[name].report.Volumes) + len(l.nodes[name].claims))
			case MostFree, "":
				values[i] = free.Available
			}
			if !found {
				low, high, found = values[i], values[i], true
			}
			low, high = min(low, values[i]), max(high, values[i])
		}
		for i, name := range nodes {
			if known[i] && high > low {
				out[name] += share(values[i]-low, high-low, most)
			}
		}
	}
	for name := range out {
		out[name] /= int64(len(demands))
	}
	return out
}

// share is part/whole of most, for 0 <= part <= whole, whatever their size.
func share(part, whole, most int64) int64 {
	high, low := bits.Mul64(uint64(part), uint64(most))
	quotient, _ := bits.Div64(high, low, uint64(whole))
	return int64(quotient)
}
