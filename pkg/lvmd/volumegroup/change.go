package volumegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Change runs a command that changes the group, in its slot, and updates the inventory. run returns
// the command's effect, or nil if it had nothing to do.
//
// If the sequence number shows no other change, that takes no further command; otherwise, and after
// any failure, it scans the group.
//
// ctx bounds the wait for the slot only. A command runs to its end or its own deadline: half a
// change is worse than a late one.
func (s *Groups) Change(ctx context.Context, g *Group, run func(context.Context) (inventory.Effect, error)) error {
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return err
	}
	defer done()
	return s.ChangeHeld(g, run)
}

// ChangeHeld is Change for a caller that has the group's slot.
func (s *Groups) ChangeHeld(g *Group, run func(context.Context) (inventory.Effect, error)) error {
	change, err := g.BeginChange() // It may have been refused while the operation waited.
	if err != nil {
		return err
	}
	effect, err := run(s.Work)
	if err != nil {
		g.SetSuspect(true)
	}
	g.NoteDisks(err)
	switch {
	case err != nil:
		// The scan shows the command's effect; if it fails, the group is stale. It also shows
		// whether LVM answers: a killed command may merely have been long.
		if scanErr := s.Rescan(g); scanErr != nil {
			s.Log.Error("scanning after a failed command", "group", g.Name(), "error", scanErr)
		}
		return err
	case effect == nil, s.commit(g, change, effect):
		return nil
	}
	if err := s.rescan(g, effect); err != nil {
		s.Log.Error("scanning after a change", "group", g.Name(), "error", err)
		// The effect counts until a scan succeeds.
		change.CommitUnscanned(effect)
	}
	return nil
}

// commit applies an effect if it explains the group's metadata, and reports whether it did.
func (s *Groups) commit(g *Group, change inventory.Change, effect inventory.Effect) bool {
	now, err := s.LVM.Metadata(g.Name())
	if err != nil {
		return false
	}
	explains, placed := change.Explains(effect, now)
	if !explains {
		return false
	}
	var where ondisk.Placement
	if placed {
		if where, err = s.LVM.Placement(g.Name()); err != nil {
			s.Log.Warn("where volumes lie cannot be read from the disks; scanning", "group", g.Name(), "error", err)
		}
		if err != nil || where.Seqno != now.Seqno {
			return false
		}
	}
	change.Commit(effect, now, where)
	return true
}

// Acquire waits for the group's slot. It fails while the group is unresponsive.
func (s *Groups) Acquire(ctx context.Context, g *Group) (release func(), err error) {
	done, err := g.slot.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Inventory.Responding(g.Group); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// Rescan brings the inventory in line with the disks, and makes the consequences durable. The
// caller has the group's slot. If the scan fails, the group is stale, and Refresh retries it.
func (s *Groups) Rescan(g *Group) error { return s.rescan(g, nil) }

// rescan applies the effect of a command in the same instant, if the scan succeeds.
func (s *Groups) rescan(g *Group, after inventory.Effect) error {
	inventory.BeginScan(g.Group)
	found, err := s.Scan(s.Work, []string{g.Name()})
	if err == nil {
		repaired := s.repairSuspect(g, found)
		if cameBack(g.Known().Scanned, found) {
			a := activator{s}
			lacking := a.inactiveIn(&found[0])
			repaired = a.makeDevices(s.Work, g.Name(), lacking) || repaired
			if g.owed = lacking.names(); len(g.owed) > 0 {
				g.Inactive.Set()
			}
		}
		if repaired {
			found, err = s.Scan(s.Work, []string{g.Name()})
		}
	}
	if err != nil {
		g.SetStale()
		if errors.Is(err, lvm.ErrTimedOut) {
			s.SetUnresponsive(g, err)
		}
		return fmt.Errorf("scanning volume group %q: %w", g.Name(), err)
	}
	return s.persist(g, g.ApplyScan(s.read(g, found), after))
}

// cameBack reports whether a scan found the group, or a disk of it, again. If that was missing at
// boot, volumes lack their devices.
func cameBack(known *lvm.Group, found []lvm.Group) bool {
	return len(found) == 1 && (known == nil || found[0].MissingDevices < known.MissingDevices)
}

// Load applies the first scan of all groups, which ends the start.
func (s *Groups) Load(found []lvm.Group) error {
	s.loaded = true
	diffs := map[*Group]inventory.Diff{}
	for _, g := range s.byName {
		diffs[g] = g.ApplyScan(s.read(g, found), nil)
	}
	for g, diff := range diffs {
		if err := s.persist(g, diff); err != nil {
			return err
		}
	}
	for _, g := range s.byName {
		if g.late != nil {
			s.SetUnresponsive(g, g.late)
			g.late = nil
		}
	}
	return nil
}

func (s *Groups) read(g *Group, found []lvm.Group) inventory.Scan {
	i := slices.IndexFunc(found, func(f lvm.Group) bool { return f.Name == g.Name() })
	if i < 0 {
		hidden, _ := s.LVM.Metadata(g.Name())
		return inventory.Scan{Refused: s.Refusal(g), Metadata: hidden}
	}
	scan := inventory.Scan{Group: &found[i], Devices: map[string]lvm.Device{}}
	thin := false
	for _, lv := range scan.Group.Volumes {
		thin = thin || lv.Attr.IsThinPool()
		if !spec.AreOurs(lv.Tags) {
			continue
		}
		if d, err := deviceOf(s.LVM, g.Name(), lv.Name, spec.AreEncrypted(lv.Tags)); err == nil {
			scan.Devices[lv.Name] = d
		} else if !errors.Is(err, lvm.ErrNotFound) {
			s.Log.Warn("volume's device cannot be asked for", "volume", lv.Name, "error", err)
		}
	}
	if scan.Metadata, scan.Unreadable = s.LVM.Metadata(g.Name()); scan.Unreadable != nil {
		scan.Metadata = ondisk.Metadata{}
		return scan
	}
	if thin {
		var err error
		if scan.Where, err = s.LVM.Placement(g.Name()); err != nil {
			s.Log.Warn("where thin pools lie cannot be read from the disks", "group", g.Name(), "error", err)
		}
	}
	return scan
}
