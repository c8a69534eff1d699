package scheduler

import (
	"fmt"
	"maps"

	"github.com/carve-csi/carve/pkg/quantity"
)

// Demand is one volume that a Pod needs.
type Demand struct {
	// Claim is the claim's UID, for the caller; the ledger ignores it.
	Claim string
	// Class is the device class; empty means each node's default. Bytes is the requested size.
	Class string
	Bytes int64
}

// ShortError means that a node lacks the space for all volumes together.
type ShortError struct {
	// Class is the device class, by the node's name for it, of the largest volume that does not
	// fit.
	Node, Class string
	// Bytes is that volume's size in the class, rounded up. Left is the space for it besides the
	// others.
	Bytes, Left int64
	// Beside holds the other demands on the same group.
	Beside []Demand
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("node %s has too little free space for all of the Pod's volumes: device class %q has %s left for one of %s, beside the others and what is reserved",
		e.Node, e.Class, quantity.Bytes(e.Left), quantity.Bytes(e.Bytes))
}

// Fit returns nil if a node can take all demands together, in any order, besides its reservations.
// It returns a *ShortError if the node lacks free space, and other errors for other reasons.
func (l *Ledger) Fit(name string, demands []Demand) error {
	return l.fit(name, demands, false)
}

// FitAlone is Fit that ignores reservations and holds.
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
	others := map[string]sum{} // by group
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
		// As in FreeSpace, reservations of others may come out of the largest stretch of space; the
		// Pod's own volumes may each take a different one.
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
