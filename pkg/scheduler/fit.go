package scheduler

import (
	"fmt"
	"math/bits"
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
	// Policy says which nodes the claim's StorageClass prefers.
	Policy Policy
}

// Fit returns nil when a node can take all of the demands together, or says
// which class is short there. What the claims have reserved on the node already
// is not counted against them, nor is a volume that exists there.
func (l *Ledger) Fit(name string, demands []Demand) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil || !n.reported {
		return fmt.Errorf("node %s has not reported its capacity", name)
	}
	l.lapse(name, n)
	taken := map[string]*sum{} // by group, without what the demands have reserved
	for group, s := range n.reserved {
		t := *s
		taken[group] = &t
	}
	open := make([]Demand, 0, len(demands))
	for _, d := range demands {
		if _, exists := n.report.Volumes[d.Volume]; exists {
			continue
		}
		open = append(open, d)
		if e := n.claims[d.Claim]; e != nil && e.charged {
			taken[e.group].sub(e.bytes)
		}
	}
	others := map[string]int64{}
	for group, t := range taken {
		others[group] = t.saturated()
	}
	for _, d := range open {
		c, ok := findClass(n.report.Classes, d.Class)
		if !ok {
			return fmt.Errorf("node %s does not have device class %q", name, d.Class)
		}
		t := taken[c.Group]
		if t == nil {
			t = &sum{}
			taken[c.Group] = t
		}
		bytes := roundUp(max(d.Bytes, c.MinimumVolume), c.AllocationUnit)
		t.add(bytes)
		// As in Room, what others wait for may come out of the largest stretch
		// of space; the Pod's own volumes may each take another one.
		if t.saturated() > c.Available || others[c.Group] > min(c.MaximumVolume, c.Available)-bytes {
			return fmt.Errorf("node %s has no room for all of the Pod's volumes: device class %q has %d bytes free, %d are reserved or asked for",
				name, c.Name, c.Available, t.saturated())
		}
	}
	return nil
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
		low, high, found := int64(0), int64(0), false
		for i, name := range nodes {
			room, ok := l.room(name, d.Class)
			if known[i] = ok; !ok {
				continue
			}
			switch d.Policy {
			case LeastFree:
				values[i] = -room.Available
			case FewestVolumes:
				values[i] = -int64(len(l.nodes[name].report.Volumes) + len(l.nodes[name].claims))
			case MostFree, "":
				values[i] = room.Available
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
