package scheduler

import (
	"fmt"
	"maps"

	"github.com/carve-csi/carve/pkg/quantity"
)

// Demand is one volume that a Pod needs.
type Demand struct {
	// Claim is the claim's UID, for the caller; the ledger does not read it.
	Claim string
	// Class is the device class, empty for each node's default one; Bytes the
	// size asked for.
	Class string
	Bytes int64
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

// Fit returns nil when a node can take all of the demands together, in whatever
// order they come, beside all that is reserved there, or else why not: a *ShortError
// when it is for want of free space.
func (l *Ledger) Fit(name string, demands []Demand) error {
	return l.fit(name, demands, false)
}

// FitAlone is Fit as though nothing else were reserved, and nothing were held.
func (l *Ledger) FitAlone(name string, demands []Demand) error {
	return l.fit(name, demands, true)
}

func (l *Ledger) fit(name string, demands []Demand, alone bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil || !n.reported {
		return fmt.Errorf("node %s has not reported its capacity", name)
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
	open, all := make([]volume, 0, len(demands)), maps.Clone(others)
	for _, d := range demands {
		c, ok := findClass(n.report.Classes, d.Class)
		if !ok {
			return fmt.Errorf("node %s does not have device class %q", name, d.Class)
		}
		if !alone && l.holds(name, c.Name) {
			return fmt.Errorf("nothing is placed on node %s in device class %q at present", name, c.Name)
		}
		v := volume{d, c, c.size(d.Bytes), c.cost(d.Bytes)}
		open = append(open, v)
		s := all[c.Group]
		s.add(v.cost)
		all[c.Group] = s
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
