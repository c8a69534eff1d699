package lvmd

import (
	"context"
	"errors"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/thinpool"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

const (
	// A pool that could not be extended is retried after a delay that doubles, or once its group
	// changes. It may fill up before.
	firstExtendRetry = time.Second
	lastExtendRetry  = time.Minute
	poolRetry        = time.Minute
)

type poolKeeper struct {
	*core
	*thinpool.Maker
}

func newPoolKeeper(c *core, retry time.Duration) *poolKeeper {
	return &poolKeeper{c, thinpool.New(c.lvm, c.journal, c.log, poolReport(c, retry), c.crash)}
}

func poolReport(c *core, retry time.Duration) func(group, pool string, err error) {
	return func(group, pool string, err error) { c.groups.Named(group).SetPoolUnmade(pool, err, retry) }
}

// startLVM scans as the start does, which skips groups whose LVM does not answer.
type startLVM struct {
	thinpool.LVM
	scan func(ctx context.Context, groups []string) ([]lvm.Group, error)
}

func (s startLVM) Scan(ctx context.Context, groups []string) ([]lvm.Group, error) {
	return s.scan(ctx, groups)
}

func poolsAtStart(c *core, retry time.Duration) *thinpool.Maker {
	return thinpool.New(startLVM{c.lvm, c.groups.ScanAtStart}, c.journal, c.log, poolReport(c, retry), c.crash)
}

// loop takes one system call per pool, and wakes no disk.
func (s *poolKeeper) loop(ctx context.Context, g *volumegroup.Group) {
	tick := time.NewTicker(s.groups.PollInterval)
	defer tick.Stop()
	failed := map[*inventory.Pool]attempt{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, p := range s.inventory.Pools(g.Group) {
			s.look(p)
			last, seqno := failed[p], g.Known().Seqno
			if time.Since(last.at) < last.delay && last.seqno == seqno {
				continue
			}
			switch err := s.extend(ctx, g, p); {
			case err == nil:
				delete(failed, p)
			case ctx.Err() == nil:
				failed[p] = attempt{time.Now(), g.Known().Seqno, min(max(firstExtendRetry, 2*last.delay), lastExtendRetry)}
				s.log.Warn("thin pool cannot be extended", "group", g.Name(), "pool", p.Name(), "error", err)
			}
		}
	}
}

// attempt is retried after delay, or once the group's sequence number differs.
type attempt struct {
	at    time.Time
	seqno uint64
	delay time.Duration
}

func (s *poolKeeper) look(p *inventory.Pool) {
	group := p.Group().Name()
	status, err := s.lvm.PoolStatus(group, p.Name())
	if errors.Is(err, lvm.ErrNotFound) && p.IsActivating() {
		return // Do not wait for the slot: the activation holds it, possibly for long.
	}
	if errors.Is(err, lvm.ErrNotFound) {
		// LVM renames the device, and removes it for a moment, when a pool gets its first volume or
		// loses its last. So check again between commands, with the slot held.
		done, slotErr := s.groups.Acquire(s.work, s.groups.Named(group))
		if slotErr != nil {
			return // Keep the last status until the next look.
		}
		status, err = s.lvm.PoolStatus(group, p.Name())
		done()
	}
	if errors.Is(err, lvm.ErrTimedOut) {
		return // A disk of the pool does not answer: keep the last status.
	}
	if err != nil && !errors.Is(err, lvm.ErrNotFound) {
		s.log.Warn("thin pool's status cannot be read", "group", group, "pool", p.Name(), "error", err)
	}
	if p.SetStatus(status, err == nil) {
		s.groups.Named(group).Reclaim() // Deletions in the pool wait for its device.
	}
}

// extend grows data or metadata by one step past the threshold. It needs no intent: LVM's
// commit is its only effect.
func (s *poolKeeper) extend(ctx context.Context, g *volumegroup.Group, p *inventory.Pool) error {
	growth, reserved := s.plan(g, p)
	// Metadata may still grow when data cannot.
	var stuck, err, metadataErr error
	if growth.Stuck != "" {
		stuck = errors.New(growth.Stuck)
	}
	if growth.Extents > 0 {
		err = s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
			on, err := p.Place(growth.Extents, 0)
			if err != nil {
				return nil, err
			}
			return inventory.PoolGrown(reserved), s.lvm.ExtendPool(ctx, g.Name(), p.Name(), growth.Extents, on...)
		})
		reserved.Release()
		s.log.Info("thin pool was extended", "group", g.Name(), "pool", p.Name(), "extents", growth.Extents, "error", err)
	}
	if growth.Metadata > 0 {
		// LVM decides how much the spare metadata grows along.
		metadataErr = s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
			on, err := p.Place(0, growth.Metadata)
			if err != nil {
				return nil, err
			}
			return inventory.Unknown(), s.lvm.ExtendPoolMetadata(ctx, g.Name(), p.Name(), growth.Metadata, on...)
		})
		s.log.Info("thin pool's metadata was extended", "group", g.Name(), "pool", p.Name(), "bytes", growth.Metadata, "error", metadataErr)
	}
	if growth.Extents > 0 || growth.Metadata > 0 {
		s.crash("pool: extended")
		s.look(p)
	}
	return errors.Join(err, metadataErr, stuck)
}

func (s *poolKeeper) plan(g *volumegroup.Group, p *inventory.Pool) (growth thinpool.Growth, reserved *inventory.PoolGrowth) {
	if now := p.Sizes(); now != nil {
		growth = thinpool.Pool{
			Group: g.Name(), Total: now.Total, ExtentSize: now.ExtentSize, Free: now.Free, AutoExtend: *now.Settings.AutoExtend,
			DataDue: now.DataDue, MetadataDue: now.MetadataDue, Extents: now.Extents, Metadata: now.Metadata,
			DataLayout: now.DataLayout, MetadataLayout: now.MetadataLayout,
			DataGrowth: now.DataGrowth, MetadataGrowth: now.MetadataGrowth,
		}.Grow()
	}
	if growth.Extents > 0 {
		if err := s.checkGrowth(p); err != nil {
			growth.Extents, growth.Stuck = 0, err.Error()
		}
	}
	return growth, p.Plan(growth.Extents, growth.Stuck)
}

// retry creates missing thin pools, also those of a group that has just appeared.
func (s *poolKeeper) retry(ctx context.Context, g *volumegroup.Group) {
	if !g.Known().PoolsDue {
		return
	}
	done, err := s.groups.Acquire(ctx, g)
	if err != nil {
		return
	}
	defer done()
	if err := s.Make(ctx, s.inventory.Config(), g.Name()); err != nil {
		s.log.Error("not all thin pools could be made; it will be tried again", "group", g.Name(), "error", err)
	}
	if err := s.groups.Rescan(g); err != nil {
		s.log.Warn("scanning failed", "group", g.Name(), "error", err)
	}
}

// lookAtRAID asks the kernel, as images fail without a change of the metadata. It runs no
// command.
func (s *poolKeeper) lookAtRAID(g *volumegroup.Group) {
	found := map[string]lvm.RAIDStatus{}
	for _, name := range g.RAIDNames() {
		status, err := s.lvm.RAIDStatus(g.Name(), name)
		if err != nil && !errors.Is(err, lvm.ErrNotFound) { // A missing device has a condition of its own.
			s.log.Warn("failed to read the status of a RAID volume", "group", g.Name(), "volume", name, "error", err)
		}
		found[name] = status
	}
	g.SetRAID(found)
}
