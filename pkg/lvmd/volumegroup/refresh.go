package volumegroup

import (
	"context"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Refresh scans a group if it may not be what the inventory says: it compares the sequence number
// on the disks, and the numbers of the volumes' devices, and runs a command only when
// something changed.
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

// differs reports whether a group's disks say something else than the inventory.
func (s *Groups) differs(g *Group) bool {
	now, err := s.LVM.Metadata(g.Name())
	return g.Differs(now, err, s.PollInterval, s.ProbeInterval)
}

// renumbered reports whether a volume of a group has got a device, has lost the one
// that it had, or has it with another number, or runs again after a scan found it
// suspended: the metadata says nothing of what an administrator activates or resumes.
// It asks the kernel once for all volumes, and again for those that need a closer look.
func (s *Groups) renumbered(g *Group) bool {
	numbers, err := s.LVM.Numbers(g.Name())
	if err != nil {
		return false
	}
	moved, appeared, suspended := g.Renumbered(numbers, s.PollInterval)
	// LVM suspends a volume for a moment whenever it changes its table: a scan in that
	// moment must not be the last one.
	return moved || slices.ContainsFunc(suspended, func(v *inventory.Volume) bool {
		d, err := s.Device(v)
		return err == nil && !d.Suspended
	}) || slices.ContainsFunc(appeared, func(v *inventory.Volume) bool {
		// It may have no table, or no right node: a scan would not find it then.
		_, err := s.Device(v)
		return err == nil
	})
}

// SetUnresponsive notes that LVM does not answer for a group, and has it probed until
// it does.
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

// probe scans a group that does not respond again and again until that works.
func (s *Groups) probe(ctx context.Context, g *Group) {
	for {
		select {
		case <-time.After(s.ProbeInterval):
		case <-ctx.Done():
			return
		}
		done, err := g.slot.Acquire(ctx)
		if err != nil {
			continue // Too many wait for the slot: nothing but this probe ends that the group is unresponsive.
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
