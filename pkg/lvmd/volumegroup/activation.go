package volumegroup

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

const (
	// poolGrace is how long a start waits for the activation of thin pools.
	poolGrace = 10 * time.Second
	// What could not be activated is tried again after a delay that doubles.
	firstActivationRetry = 10 * time.Second
	lastActivationRetry  = 5 * time.Minute
)

// activator makes the devices of volumes and thin pools.
type activator struct{ *Groups }

// inactive are volumes that have no device and are to have one.
type inactive struct {
	// volumes lie in no thin pool, or in one that is active.
	volumes []string
	// pools are the thin pools without a device, each with those of its volumes that are ours.
	pools map[string][]string
}

func (i inactive) isEmpty() bool { return len(i.volumes)+len(i.pools) == 0 }

// names are those of all volumes and pools.
func (i inactive) names() []string {
	names := slices.Clone(i.volumes)
	for pool, volumes := range i.pools {
		names = append(append(names, pool), volumes...)
	}
	return names
}

// inactiveIn finds the volumes of ours, and the thin pools that we have to do with, that
// have no device and are to have one. Those that an administrator set to be skipped, to
// repair them for example, are left alone, and so is what lies in such a pool: to activate
// it would activate the pool.
func (s activator) inactiveIn(g *lvm.Group) inactive {
	ours := poolsIn(s.Inventory, g)
	found := inactive{pools: map[string][]string{}}
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; ours[lv.Name] && lv.Attr.IsThinPool() && !lv.Attr.SkipActivation && s.lacksPool(g.Name, lv.Name) {
			found.pools[lv.Name] = nil
		}
	}
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		pool := g.Volume(lv.Pool)
		if !spec.AreOurs(lv.Tags) || lv.Attr.SkipActivation || pool != nil && pool.Attr.SkipActivation {
			continue
		}
		if _, err := s.LVM.Device(g.Name, lv.Name); err == nil {
			continue
		}
		if volumes, waits := found.pools[lv.Pool]; waits {
			found.pools[lv.Pool] = append(volumes, lv.Name)
		} else {
			found.volumes = append(found.volumes, lv.Name)
		}
	}
	return found
}

func (s activator) lacksPool(group, pool string) bool {
	_, err := s.LVM.PoolStatus(group, pool)
	return errors.Is(err, lvm.ErrNotFound)
}

// makeDevices activates those of the inactive volumes of a group that lie in no inactive thin pool,
// and reports whether there were any. The caller has the group's slot.
func (s activator) makeDevices(ctx context.Context, group string, found inactive) (changed bool) {
	if len(found.volumes) == 0 {
		return false
	}
	s.Log.Info("activating volumes", "group", group, "volumes", len(found.volumes))
	if err := s.LVM.Activate(ctx, group, found.volumes); err != nil {
		// A volume on a missing disk is no reason not to serve the others.
		s.Log.Error("not all volumes could be activated; it will be tried again", "group", group, "error", err)
	}
	return true
}

// makePool activates a thin pool, and the volumes in it that are ours. The pool comes first and
// alone: LVM checks its metadata, for as long as there is much of it. The caller has the group's slot.
func (s activator) makePool(g *Group, pool string, volumes []string) {
	s.Log.Info("activating a thin pool", "group", g.Name(), "pool", pool, "volumes", len(volumes))
	err := s.LVM.ActivatePool(s.Work, g.Name(), pool)
	if s.Work.Err() != nil {
		return
	}
	if err != nil {
		// The command may have been killed in the middle of a change.
		g.SetSuspect(true)
		s.Log.Error("a thin pool could not be activated; it will be tried again", "group", g.Name(), "pool", pool, "error", err)
		inventory.SetActivation(g.Group, inventory.ActivationFailed, err, pool)
		return
	}
	inventory.SetActivation(g.Group, inventory.NotActivating, nil, pool)
	if len(volumes) == 0 {
		return
	}
	if err := s.LVM.Activate(s.Work, g.Name(), volumes); err != nil {
		s.Log.Error("not all volumes of a thin pool could be activated; it will be tried again", "group", g.Name(), "pool", pool, "error", err)
	}
}

// beginning is the activation of thin pools that a start began.
type beginning struct {
	// ended is closed when it is done, and release gives the group's slot back.
	ended   chan struct{}
	release func()
}

// beginPools activates thin pools at a start, all groups at once, and waits for that no longer than
// poolGrace. busy are the groups in which it goes on: LVM answers nothing of them until it ends.
func (s activator) beginPools(pools map[*Group]inactive) (busy []string, err error) {
	for g, found := range pools {
		done, err := s.Acquire(s.Work, g)
		if err != nil {
			return nil, err
		}
		inventory.SetActivation(g.Group, inventory.Activating, nil, slices.Collect(maps.Keys(found.pools))...)
		g.begun = &beginning{ended: make(chan struct{}), release: done}
		s.Spawn(func() {
			defer close(g.begun.ended)
			for _, pool := range slices.Sorted(maps.Keys(found.pools)) {
				s.makePool(g, pool, found.pools[pool])
			}
		})
	}
	grace := time.NewTimer(s.PoolGrace)
	defer grace.Stop()
	late := false
	for g := range pools {
		if !late {
			select {
			case <-g.begun.ended:
			case <-grace.C:
				late = true
			case <-s.Work.Done():
				return nil, s.Work.Err()
			}
		}
		select {
		case <-g.begun.ended:
			g.begun.release()
			g.begun = nil
		default:
			s.Log.Warn("thin pools are still being activated; the other volume groups are served meanwhile", "group", g.Name())
			busy = append(busy, g.Name())
		}
	}
	return busy, nil
}

// IsBeginning reports whether a start activates thin pools of the group that it did not wait for. It
// is false again after the next start only.
func (g *Group) IsBeginning() bool { return g.begun != nil }

// ActivateLoop ends what a start began of a group, and activates again what could not be activated,
// until ctx is done. What an administrator deactivates stays as it is.
func (s *Groups) ActivateLoop(ctx context.Context, g *Group) {
	a := activator{s}
	var retry time.Time
	if g.begun != nil {
		select {
		case <-g.begun.ended:
		case <-ctx.Done():
			return
		}
		// What could not be activated waits for its delay.
		if a.activated(g) {
			retry = time.Now().Add(s.ActivationRetry)
		}
		g.begun.release()
		g.Reclaim()
	}
	for delay := s.ActivationRetry; g.Inactive.Wait(ctx, retry); {
		if a.activateAgain(ctx, g) {
			retry, delay = time.Now().Add(delay), min(2*delay, lastActivationRetry)
		} else {
			retry, delay = time.Time{}, s.ActivationRetry
		}
	}
}

// activateAgain activates what is to have a device and has none, and reports whether some is left. A
// slow thin pool does not keep the group's slot for another one.
func (s activator) activateAgain(ctx context.Context, g *Group) (left bool) {
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return true
	}
	found, err := s.toActivate(g)
	if err == nil {
		s.makeDevices(s.Work, g.Name(), found)
		left = s.activated(g)
	}
	done()
	for _, pool := range slices.Sorted(maps.Keys(found.pools)) {
		if done, err = s.Acquire(ctx, g); err != nil {
			return true
		}
		inventory.SetActivation(g.Group, inventory.Activating, nil, pool)
		s.makePool(g, pool, found.pools[pool])
		left = s.activated(g)
		done()
	}
	g.Reclaim()
	return left || err != nil
}

// toActivate is what of a group is still to be activated of what was tried before. The caller has the
// group's slot.
func (s activator) toActivate(g *Group) (inactive, error) {
	found, err := s.Scan(s.Work, []string{g.Name()})
	if err != nil || len(found) == 0 {
		return inactive{}, err // A group that comes back is looked at then.
	}
	return s.stillInactive(g, &found[0]), nil
}

// stillInactive is what of a scanned group has no device of what was tried before.
func (s activator) stillInactive(g *Group, found *lvm.Group) inactive {
	all := s.inactiveIn(found)
	skip := func(name string) bool { return !slices.Contains(g.owed, name) }
	all.volumes = slices.DeleteFunc(all.volumes, skip)
	maps.DeleteFunc(all.pools, func(pool string, _ []string) bool { return skip(pool) })
	return all
}

// activated takes over what an activation came to, and reports whether something that was to be activated
// has no device. The caller has the group's slot.
func (s activator) activated(g *Group) (left bool) {
	for _, p := range s.Inventory.Pools(g.Group) {
		if status, err := s.LVM.PoolStatus(g.Name(), p.Name()); err == nil {
			p.SetStatus(status, true)
		}
	}
	if err := s.Rescan(g); err != nil {
		s.Log.Warn("scanning failed", "group", g.Name(), "error", err)
		return true
	}
	still, err := s.toActivate(g)
	g.owed = still.names()
	return err != nil || !still.isEmpty()
}
