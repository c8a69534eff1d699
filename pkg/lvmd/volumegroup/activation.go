package volumegroup

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

const (
	// poolGrace bounds the wait of a start for the checks of thin pools.
	poolGrace = 10 * time.Second
	// The delay after a failed activation doubles each time.
	firstActivationRetry = 10 * time.Second
	lastActivationRetry  = 5 * time.Minute
)

type activator struct{ *Groups }

// inactive has what lacks a device and should have one.
type inactive struct {
	// volumes lie in no thin pool, or in an active one.
	volumes []string
	// pools are without a device, each with our volumes in it.
	pools map[string][]string
}

func (i inactive) isEmpty() bool { return len(i.volumes)+len(i.pools) == 0 }

func (i inactive) names() []string {
	names := slices.Clone(i.volumes)
	for pool, volumes := range i.pools {
		names = append(append(names, pool), volumes...)
	}
	return names
}

// inactiveIn leaves alone what an administrator set to be skipped, to repair it for example, and
// the volumes of such a pool: activating one would activate the pool.
func (s activator) inactiveIn(g *lvm.Group) inactive {
	ours := poolsIn(s.byName[g.Name], g)
	found := inactive{pools: map[string][]string{}}
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; ours[lv.Name] && lv.Attr.IsThinPool() && !lv.Attr.SkipActivation && s.lacksPool(g.Name, lv.Name) {
			found.pools[lv.Name] = nil
		}
	}
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		pool := g.Volume(lv.Pool)
		// Skip components that a killed lvcreate left with our tags: LVM would ask whether to
		// activate one, and wait for the answer.
		if !spec.AreOurs(lv.Tags) || layout.IsComponent(lv.Name) || lv.Attr.SkipActivation || pool != nil && pool.Attr.SkipActivation {
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

// makeDevices activates found.volumes, and reports whether there were any. The caller has the
// group's slot.
func (s activator) makeDevices(ctx context.Context, group string, found inactive) (changed bool) {
	if len(found.volumes) == 0 {
		return false
	}
	s.Log.Info("activating volumes", "group", group, "volumes", len(found.volumes))
	if err := s.LVM.Activate(ctx, group, found.volumes); err != nil {
		// Go on: a volume on a missing disk must not keep the others from service.
		s.Log.Error("not all volumes could be activated; it will be tried again", "group", group, "error", err)
	}
	return true
}

// poolCheck is the check of a thin pool's metadata, which runs outside the group's slot.
type poolCheck struct {
	// ended is closed after the writes to enough, which means that LVM need not check again, and
	// err.
	ended  chan struct{}
	enough bool
	err    error
}

func (c *poolCheck) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// beginCheck begins the check of a thin pool; other changes of the group go on meanwhile. Its end
// wakes ActivateLoop. If the check cannot run, LVM's own must do. The caller has the group's slot.
func (s activator) beginCheck(g *Group, pool string) *poolCheck {
	inventory.SetActivation(g.Group, pool, inventory.CheckingMetadata, nil)
	c := &poolCheck{ended: make(chan struct{})}
	err := s.LVM.BeginPoolCheck(s.Work, g.Name(), pool)
	if err != nil {
		if errors.Is(err, lvm.ErrTimedOut) {
			c.err = err
		}
		s.Log.Warn("the metadata of a thin pool cannot be checked on their own", "group", g.Name(), "pool", pool, "error", err)
		close(c.ended)
		return c
	}
	s.Log.Info("checking the metadata of a thin pool", "group", g.Name(), "pool", pool)
	s.Spawn(func() {
		defer g.Inactive.Set()
		defer close(c.ended)
		c.enough, c.err = s.LVM.CheckPool(s.Work, g.Name(), pool)
	})
	return c
}

// makePool activates a thin pool after its check, and then our volumes in it. The pool comes first
// and alone, since LVM's check may take long. The caller has the group's slot.
func (s activator) makePool(g *Group, pool string, volumes []string, check *poolCheck) {
	err := check.err
	if err == nil {
		inventory.SetActivation(g.Group, pool, inventory.Activating, nil)
		s.Log.Info("activating a thin pool", "group", g.Name(), "pool", pool, "volumes", len(volumes), "checked", check.enough)
		if err = s.LVM.ActivatePool(s.Work, g.Name(), pool, check.enough); err != nil {
			// The command may have been killed during a change.
			g.SetSuspect(true)
		}
	}
	if s.Work.Err() != nil {
		return
	}
	if err != nil {
		s.Log.Error("a thin pool could not be activated; it will be tried again", "group", g.Name(), "pool", pool, "error", err)
		inventory.SetActivation(g.Group, pool, inventory.ActivationFailed, err)
		return
	}
	inventory.SetActivation(g.Group, pool, inventory.NotActivating, nil)
	if len(volumes) == 0 {
		return
	}
	if err := s.LVM.Activate(s.Work, g.Name(), volumes); err != nil {
		s.Log.Error("not all volumes of a thin pool could be activated; it will be tried again", "group", g.Name(), "pool", pool, "error", err)
	}
}

// makePoolsAtStart activates the thin pools whose check ends within poolGrace. It leaves the
// others, and those that LVM must check, to ActivateLoop: no other work begins before it returns.
func (s activator) makePoolsAtStart(pools map[*Group]inactive) {
	var beginning sync.WaitGroup
	for g, found := range pools {
		beginning.Go(func() {
			for _, pool := range slices.Sorted(maps.Keys(found.pools)) {
				g.checks[pool] = s.beginCheck(g, pool)
			}
		})
	}
	beginning.Wait()
	grace, cancel := context.WithTimeout(s.Work, s.PoolGrace)
	defer cancel()
	for g := range pools {
		for _, check := range g.checks {
			select {
			case <-check.ended:
			case <-grace.Done():
			}
		}
	}
	var making sync.WaitGroup
	for g, found := range pools {
		making.Go(func() {
			for _, pool := range slices.Sorted(maps.Keys(g.checks)) {
				switch check := g.checks[pool]; {
				case !check.hasEnded():
					s.Log.Warn("the metadata of a thin pool are still being checked; all else is served meanwhile", "group", g.Name(), "pool", pool)
				case check.enough:
					delete(g.checks, pool)
					s.makePool(g, pool, found.pools[pool], check)
				}
			}
		})
	}
	making.Wait()
}

// ActivateLoop activates what a start left to it, and retries failed activations, until ctx is
// done. It does not activate what an administrator deactivated.
func (s *Groups) ActivateLoop(ctx context.Context, g *Group) {
	a := activator{s}
	var retry time.Time
	for delay := s.ActivationRetry; g.Inactive.Wait(ctx, retry); {
		if a.activateAgain(ctx, g) {
			retry, delay = time.Now().Add(delay), min(2*delay, lastActivationRetry)
		} else {
			retry, delay = time.Time{}, s.ActivationRetry
		}
	}
}

// activateAgain reports whether anything but thin pools under check still lacks a device. It
// releases the slot between pools, as each may take long.
func (s activator) activateAgain(ctx context.Context, g *Group) (left bool) {
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return true
	}
	found, err := s.toActivate(g)
	if err == nil {
		s.makeDevices(s.Work, g.Name(), found)
		for pool := range found.pools {
			if g.checks[pool] == nil {
				g.checks[pool] = s.beginCheck(g, pool)
			}
		}
		left = s.activated(g)
	}
	done()
	for _, pool := range slices.Sorted(maps.Keys(g.checks)) {
		check := g.checks[pool]
		if err != nil || !check.hasEnded() {
			continue
		}
		volumes, waits := found.pools[pool]
		if !waits {
			delete(g.checks, pool) // It has a device, or was left alone.
			continue
		}
		if done, err = s.Acquire(ctx, g); err != nil {
			return true
		}
		delete(g.checks, pool)
		s.makePool(g, pool, volumes, check)
		left = s.activated(g)
		done()
	}
	g.Reclaim()
	return left || err != nil
}

// toActivate scans the group for what earlier attempts did not activate. The caller has the group's
// slot.
func (s activator) toActivate(g *Group) (inactive, error) {
	found, err := s.Scan(s.Work, []string{g.Name()})
	if err != nil || len(found) == 0 {
		return inactive{}, err // Its return activates it.
	}
	return s.stillInactive(g, &found[0]), nil
}

func (s activator) stillInactive(g *Group, found *lvm.Group) inactive {
	all := s.inactiveIn(found)
	skip := func(name string) bool { return !slices.Contains(g.owed, name) }
	all.volumes = slices.DeleteFunc(all.volumes, skip)
	maps.DeleteFunc(all.pools, func(pool string, _ []string) bool { return skip(pool) })
	return all
}

// activated updates the inventory after an activation, and reports whether anything but thin pools
// under check still lacks a device. The caller has the group's slot.
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
	if err != nil {
		return true
	}
	g.owed = still.names()
	maps.DeleteFunc(still.pools, func(pool string, _ []string) bool { return g.checks[pool] != nil })
	return !still.isEmpty()
}
