package volumegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// repairSuspect repairs devices that a command of ours left in the middle of a change
// when it was killed: a device that is suspended, on which every process waits for
// ever, and one that has another table than the metadata says, so that I/O fails
// within the volume, or reaches beyond it, into what others are given. It reports
// whether it did anything. The caller has the group's slot.
//
// It is done after a command of ours failed and at no other time but at the start:
// what an administrator does to a device is theirs.
func (s *Groups) repairSuspect(g *Group, found []lvm.Group) (repaired bool) {
	if !g.IsSuspect() {
		return false
	}
	for i := range found {
		did, err := s.repair(&found[i])
		repaired = repaired || did
		if err != nil {
			return repaired // It is tried again, see inventory.Differs.
		}
	}
	g.SetSuspect(false)
	return repaired
}

// repair repairs what is inconsistent of a scanned group, and reports whether that was
// anything.
func (s *Groups) repair(g *lvm.Group) (repaired bool, err error) {
	inconsistent := s.inconsistentIn(g)
	if len(inconsistent) == 0 {
		return false, nil
	}
	s.Log.Warn("repairing devices that a killed command left in the middle of a change", "group", g.Name, "volumes", inconsistent)
	if err := s.LVM.Repair(s.Work, g.Name, inconsistent); err != nil {
		s.Log.Error("devices could not be repaired; it will be tried again", "group", g.Name, "volumes", inconsistent, "error", err)
		return true, err
	}
	return true, nil
}

// inconsistentIn names the volumes of ours, and the thin pools, which our volumes draw
// from, of which a device is not what the metadata says.
func (s *Groups) inconsistentIn(g *lvm.Group) []string {
	names, err := s.LVM.Inconsistent(g.Name)
	if err != nil {
		s.Log.Warn("whether devices are what the metadata says is not known", "group", g.Name, "error", err)
		return nil
	}
	if len(names) == 0 {
		return nil
	}
	pools := poolsIn(s.Inventory, g)
	var inconsistent []string
	for _, lv := range g.Volumes {
		if (spec.AreOurs(lv.Tags) || pools[lv.Name] && !lv.Attr.SkipActivation) &&
			slices.ContainsFunc(names, func(name string) bool { return layout.IsOf(name, lv.Name) }) {
			inconsistent = append(inconsistent, lv.Name)
		}
	}
	return inconsistent
}

// Activate repairs the devices of our volumes at a start, makes them where any lacks one, as
// after a reboot, and returns the groups as they are then.
func (s *Groups) Activate(ctx context.Context, names []string, found []lvm.Group) ([]lvm.Group, error) {
	changed := false
	for _, g := range found {
		repaired, err := s.repair(&g)
		changed = changed || repaired
		if err != nil {
			s.byName[g.Name].SetSuspect(true)
		}
	}
	if !s.makeDevices(ctx, found) && !changed {
		return found, nil
	}
	found, err := s.Scan(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("scanning the volume groups %s: %w", strings.Join(names, ", "), err)
	}
	return found, nil
}

// makeDevices activates the volumes of ours, and the thin pools that we have to do with,
// that have no device in groups as they were scanned, and reports whether there were any.
func (s *Groups) makeDevices(ctx context.Context, found []lvm.Group) (changed bool) {
	for i := range found {
		g := &found[i]
		inactive := s.inactiveIn(g)
		if len(inactive) == 0 {
			continue
		}
		changed = true
		s.Log.Info("activating volumes", "group", g.Name, "volumes", len(inactive))
		if err := s.LVM.Activate(ctx, g.Name, inactive); err != nil {
			// A volume on a missing disk is no reason not to serve the others.
			s.Log.Error("not all volumes could be activated", "group", g.Name, "error", err)
		}
	}
	return changed
}

// inactiveIn names the volumes of ours, and the thin pools that we have to do with, that
// have no device and are to have one. Those that an administrator set to be skipped, to
// repair them for example, are left alone, and so is what lies in such a pool: to activate
// it would activate the pool.
func (s *Groups) inactiveIn(g *lvm.Group) []string {
	pools := poolsIn(s.Inventory, g)
	var inactive []string
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		pool := g.Volume(lv.Pool)
		switch {
		case lv.Attr.SkipActivation || pool != nil && pool.Attr.SkipActivation:
		case pools[lv.Name]:
			if _, err := s.LVM.PoolStatus(g.Name, lv.Name); lv.Attr.IsThinPool() && errors.Is(err, lvm.ErrNotFound) {
				inactive = append(inactive, lv.Name)
			}
		case spec.AreOurs(lv.Tags):
			if _, err := s.LVM.Device(g.Name, lv.Name); err != nil {
				inactive = append(inactive, lv.Name)
			}
		}
	}
	return inactive
}

// poolsIn names the thin pools of a scanned group that we have to do with: those of our
// classes, and those that volumes or snapshots of ours lie in.
func poolsIn(known *inventory.Inventory, g *lvm.Group) map[string]bool {
	pools := known.ClassPools(g.Name)
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; lv.Pool != "" && spec.AreOurs(lv.Tags) {
			pools[lv.Pool] = true
		}
	}
	return pools
}
