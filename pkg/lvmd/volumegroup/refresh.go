package volumegroup

import (
	"context"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Refresh scans a group that may differ from the inventory. It compares the sequence number on the
// disks, and the volumes' device numbers, without running a command.
func (s *Groups) Refresh(ctx context.Context, g *Group) {
	if !s.differs(g) && !s.renumbered(g) {
		return
	}
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return
	}
	defer done()
	// Our own command may have made the difference, and accounted for it.
	if !s.differs(g) && !s.renumbered(g) {
		return
	}
	if err := s.Rescan(g); err != nil {
		s.Log.Warn("scanning failed", "group", g.Name(), "error", err)
		return
	}
	g.Reclaim()
}

func (s *Groups) differs(g *Group) bool {
	now, err := s.LVM.Metadata(g.Name())
	return g.Differs(now, err, s.PollInterval, s.ProbeInterval)
}

// renumbered reports whether a volume has got a device, lost it, has another one, or is no longer
// suspended: the metadata does not show what an administrator activates or resumes. It queries the
// kernel once for all volumes, and then for candidates.
func (s *Groups) renumbered(g *Group) bool {
	numbers, err := s.LVM.Numbers(g.Name())
	if err != nil {
		return false
	}
	moved, appeared, suspended := g.Renumbered(numbers, s.PollInterval)
	// LVM suspends a volume briefly whenever it changes the table: a scan at that moment must not
	// be the last one.
	return moved || slices.ContainsFunc(suspended, func(v *inventory.Volume) bool {
		d, err := s.Device(v)
		return err == nil && !d.Suspended
	}) || slices.ContainsFunc(appeared, func(v *inventory.Volume) bool {
		// Without a table, or a correct node, a scan would not find it either.
		_, err := s.Device(v)
		return err == nil
	})
}

// SetUnresponsive marks LVM as not answering for the group, and probes until it does.
func (s *Groups) SetUnresponsive(g *Group, cause error) {
	if s.Work.Err() != nil {
		g.SetStale()
		return
	}
	if !g.SetUnresponsive() {
		return
	}
	s.Responding(false)
	s.Log.Error("LVM does not answer; operations on the volume group fail until it does", "group", g.Name(), "error", cause)
	s.Spawn(func() { s.probe(s.Work, g) })
}

func (s *Groups) probe(ctx context.Context, g *Group) {
	for {
		select {
		case <-time.After(s.ProbeInterval):
		case <-ctx.Done():
			return
		}
		done, err := g.slot.Acquire(ctx)
		if err != nil {
			continue // Never give up when the slot's queue is full: only this probe makes the group responsive again.
		}
		err = s.Rescan(g)
		done()
		if err == nil {
			break
		}
	}
	s.Responding(g.SetResponding())
	s.Log.Info("LVM answers again", "group", g.Name())
	g.Reclaim()
}
