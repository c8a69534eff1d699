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

// repairSuspect repairs devices that a command of ours left in the middle of a change
// when it was killed: a device that is suspended, on which every process waits for
// ever, and one that has another table than the metadata says, so that I/O fails
// within the volume, or reaches beyond it, into what others are given. It reports
// whether it did anything. The caller has the group's slot.
//
// It is done after a command of ours failed and at no other time but at the start:
// what an administrator does to a device is theirs.
func (s *Groups) repairSuspect(g *Group, found []lvm.Group) (repaired bool) {
	if !g.Known().Suspect || len(found) == 0 { // A group that is away is looked at when it comes back.
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
// anything. It is an error, too, when there may be more.
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

// inconsistentIn names the volumes of ours, and the thin pools, which our volumes draw
// from, of which a device is not what the metadata says. With an error, there may be others.
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

// Activate repairs the devices of our volumes at a start, makes them where any lacks one, as
// after a reboot, and returns the groups as they are then: of those whose thin pools take long to be
// checked, as they were.
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

// poolsIn names the thin pools of a scanned group that we have to do with: those of our
// classes, and those that volumes or snapshots of ours lie in.
func poolsIn(known *Group, g *lvm.Group) map[string]bool {
	pools := known.ClassPools()
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; lv.Pool != "" && spec.AreOurs(lv.Tags) {
			pools[lv.Pool] = true
		}
	}
	return pools
}
