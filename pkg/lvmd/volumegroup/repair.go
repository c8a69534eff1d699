package volumegroup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// repairSuspect repairs devices that a killed command of ours left inconsistent. On a suspended
// device every process waits forever. With a table that differs from the metadata, I/O fails within
// the volume, or reaches beyond it into other volumes. The caller has the group's slot.
//
// It runs only after a command of ours failed, and at the start: an administrator's changes to a
// device are theirs.
func (s *Groups) repairSuspect(g *Group, found []lvm.Group) (repaired bool) {
	if !g.Known().Suspect || len(found) == 0 { // The return of a missing group checks it.
		return false
	}
	for i := range found {
		did, err := s.repair(&found[i])
		repaired = repaired || did
		if err != nil {
			return repaired // It is retried, see inventory.Differs.
		}
	}
	g.SetSuspect(false)
	return repaired
}

// repair also fails if there may be further inconsistent devices.
func (s *Groups) repair(g *lvm.Group) (repaired bool, err error) {
	inconsistent, unknown := s.inconsistentIn(g)
	if unknown != nil {
		s.Log.Warn("whether devices are what the metadata says is not known; it will be tried again", "group", g.Name, "error", unknown)
	}
	if len(inconsistent) == 0 {
		return false, unknown
	}
	s.Log.Warn("repairing devices that a killed command left in the middle of a change", "group", g.Name, "volumes", inconsistent)
	if err := s.LVM.Repair(s.Work, g.Name, inconsistent); err != nil {
		s.Log.Error("devices could not be repaired; it will be tried again", "group", g.Name, "volumes", inconsistent, "error", err)
		return true, err
	}
	return true, unknown
}

// inconsistentIn names our volumes, and the thin pools that they use, with a device that differs
// from the metadata. With an error, the list may be incomplete.
func (s *Groups) inconsistentIn(g *lvm.Group) ([]string, error) {
	names, err := s.LVM.Inconsistent(g.Name)
	if len(names) == 0 {
		return nil, err
	}
	pools := poolsIn(s.byName[g.Name], g)
	var inconsistent []string
	for _, lv := range g.Volumes {
		if (spec.AreOurs(lv.Tags) || pools[lv.Name] && !lv.Attr.SkipActivation) &&
			slices.ContainsFunc(names, func(name string) bool { return layout.IsOf(name, lv.Name) }) {
			inconsistent = append(inconsistent, lv.Name)
		}
	}
	return inconsistent, err
}

// Activate repairs and makes the devices of our volumes at a start, as after a reboot. It returns
// the groups as they are then; those whose thin pools are still being checked are unchanged.
func (s *Groups) Activate(ctx context.Context, names []string, found []lvm.Group) ([]lvm.Group, error) {
	a := activator{s}
	changed, pools := false, map[*Group]inactive{}
	for i := range found {
		g := s.byName[found[i].Name]
		repaired, err := s.repair(&found[i])
		if err != nil {
			g.SetSuspect(true)
		}
		lacking := a.inactiveIn(&found[i])
		changed = a.makeDevices(ctx, g.Name(), lacking) || repaired || changed
		g.owed = lacking.names()
		if len(lacking.pools) > 0 {
			pools[g] = lacking
		}
	}
	a.makePoolsAtStart(pools)
	if err := s.Work.Err(); err != nil || !changed && len(pools) == 0 {
		return found, err
	}
	now, err := s.ScanAtStart(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("scanning the volume groups %s: %w", strings.Join(names, ", "), err)
	}
	for i := range now {
		g := s.byName[now[i].Name]
		if g.owed = a.stillInactive(g, &now[i]).names(); len(g.owed) > 0 {
			g.Inactive.Set()
		}
	}
	return now, nil
}

// poolsIn names the thin pools of our classes, and those of our volumes and snapshots.
func poolsIn(known *Group, g *lvm.Group) map[string]bool {
	pools := known.ClassPools()
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; lv.Pool != "" && spec.AreOurs(lv.Tags) {
			pools[lv.Pool] = true
		}
	}
	return pools
}
