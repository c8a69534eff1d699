package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Inspection is what is known of a volume and reported nowhere. Tests look at it.
type Inspection struct {
	Record spec.Record
	State  State
	Device lvm.Device
	// Busy is true while an operation has the volume, and Complete of a volume that waits for its tag
	// to be taken off.
	Busy, Complete bool
	// Failures counts the attempts that failed since one succeeded.
	Failures int
	// Callers counts those that wait for the volume's creation, and Abandoned is true while it is
	// to be cancelled if none comes.
	Callers   int
	Abandoned bool
}

// Inspect returns what is known of all volumes, tombstones included, by id.
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

// Compare is an error if what is known of a group is not what a scan of it says, or anything is
// reserved in it.
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
