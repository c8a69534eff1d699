package volumegroup

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Seeker looks for groups that are missing, or lack disks.
type Seeker struct{ *Groups }

// Loop scans at intervals: the kernel reports new devices, but neither the removal of a system ID
// nor a disk that has become readable again.
func (s Seeker) Loop(ctx context.Context) {
	tick := time.NewTicker(s.AwayInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look scans all missing groups together, except those with a busy slot and those under probe.
func (s Seeker) look(ctx context.Context) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		g := s.byName[name]
		if known := g.Known().Scanned; known != nil && known.MissingDevices == 0 || s.Inventory.Responding(g.Group) != nil {
			continue
		}
		waiting, cancel := context.WithTimeout(ctx, s.ProbeInterval)
		done, err := s.Acquire(waiting, g)
		cancel()
		if err != nil {
			continue
		}
		defer done()
		inventory.BeginScan(g.Group)
		names = append(names, name)
	}
	if len(names) == 0 {
		return
	}
	all, failed := s.Scan(s.Work, names)
	for _, name := range names {
		g, err := s.byName[name], error(nil)
		found := slices.DeleteFunc(slices.Clone(all), func(f lvm.Group) bool { return f.Name != name })
		switch {
		case failed != nil, cameBack(g.Known().Scanned, found):
			// One group's unresponsive disk must not fail the others.
			err = s.Rescan(g)
			g.Reclaim()
		case len(found) == 0:
			err = s.persist(g, g.ApplyScan(s.read(g, nil), nil))
		}
		if err != nil {
			s.Log.Warn("failed to look for a volume group", "group", name, "error", err)
		}
	}
}
