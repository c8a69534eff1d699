package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Inspection is the internal state of a volume, for tests.
type Inspection struct {
	Record spec.Record
	State  State
	Device lvm.Device
	// Complete is true of a volume that waits for the removal of its tag.
	Busy, Complete bool
	// Failures counts attempts that failed in a row.
	Failures int
	// Callers counts those waiting for the creation; Abandoned is true while the creation waits for
	// one.
	Callers   int
	Abandoned bool
}

// Inspect returns the state of all volumes, tombstones included, by id.
func (m *Inventory) Inspect() map[string]Inspection {
	m.lock()
	defer m.unlock()
	all := map[string]Inspection{}
	for id, v := range m.volumes {
		i := Inspection{Record: v.rec, State: v.lifecycle.state, Device: v.device, Busy: v.isBusy(), Complete: v.making.whenOff != nil, Failures: v.failures}
		if v.op != nil {
			i.Callers, i.Abandoned = v.op.waiters, v.op.abandoned != nil
		}
		all[id] = i
	}
	return all
}

// Compare fails if the inventory differs from a scan of the group, or has reservations in it.
func (g *Group) Compare(scan *lvm.Group) error {
	m := g.m
	m.lock()
	defer m.unlock()
	if g.allocatable != scan.Allocatable() || g.metadata.Seqno != scan.Seqno || g.creating != 0 || g.expanding != 0 || g.reservedText != 0 || g.fragments < scan.FreeSegments {
		return fmt.Errorf("allocatable %d, seqno %d, creating %d, expanding %d; scan: %d, %d",
			g.allocatable, g.metadata.Seqno, g.creating, g.expanding, scan.Allocatable(), scan.Seqno)
	}
	virtual := map[string]int64{}
	for _, lv := range scan.Volumes {
		virtual[lv.Pool] += lv.Size / scan.ExtentSize
	}
	for _, p := range g.pools {
		if p.virtual != virtual[p.name] || p.creating != 0 || p.expanding != 0 {
			return fmt.Errorf("the volumes of thin pool %s have %d extents, creating %d, expanding %d; scan: %d",
				p.name, p.virtual, p.creating, p.expanding, virtual[p.name])
		}
	}
	ours := 0
	for _, lv := range scan.Volumes {
		if !g.exists[lv.Name] {
			return fmt.Errorf("volume %s is not known to exist", lv.Name)
		}
		if !spec.AreOurs(lv.Tags) {
			continue
		}
		ours++
		if v := m.volumes[lv.Name]; v == nil || v.bytes() != lv.Size {
			return fmt.Errorf("volume %s: %+v, scan %+v", lv.Name, v, lv)
		}
	}
	if ours != len(m.volumes) || len(scan.Volumes) != len(g.exists) {
		return fmt.Errorf("%d volumes are known, %d of ours are on the disk; %d names, %d volumes",
			len(m.volumes), ours, len(g.exists), len(scan.Volumes))
	}
	return nil
}
