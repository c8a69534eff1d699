package lvmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// A pool that could not be extended is left alone for a delay that doubles,
// unless its group changes: it may fill up meanwhile.
const (
	firstExtendRetry = time.Second
	lastExtendRetry  = time.Minute
)

// poolLoop keeps an eye on the fullness of a group's thin pools until ctx is
// done, and extends those that are configured to grow. It asks the kernel, which
// costs a system call for each pool and wakes no disk.
func (s *Service) poolLoop(ctx context.Context, g *group) {
	tick := time.NewTicker(s.pollInterval)
	defer tick.Stop()
	failed := map[*pool]attempt{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, p := range s.poolsOf(g) {
			s.lookAtPool(p)
			last := failed[p]
			if time.Since(last.at) < last.delay && last.seqno == s.seqnoOf(p.group) {
				continue
			}
			switch err := s.extendPool(ctx, p); {
			case err == nil:
				delete(failed, p)
			case ctx.Err() == nil:
				failed[p] = attempt{time.Now(), s.seqnoOf(p.group), min(max(firstExtendRetry, 2*last.delay), lastExtendRetry)}
				s.log.Warn("thin pool cannot be extended", "group", p.group.name, "pool", p.name, "error", err)
			}
		}
	}
}

// attempt is when, and at which state of the group, something was tried, and for
// how long it is then left alone.
type attempt struct {
	at    time.Time
	seqno uint64
	delay time.Duration
}

func (s *Service) seqnoOf(g *group) uint64 {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return g.metadata.Seqno
}

// pools are all thin pools that the model has.
func (s *Service) pools() []*pool {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	var all []*pool
	for _, g := range s.model.groups {
		all = slices.AppendSeq(all, maps.Values(g.pools))
	}
	return all
}

// poolsOf are the thin pools that the model has in a group.
func (s *Service) poolsOf(g *group) []*pool {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return slices.Collect(maps.Values(g.pools))
}

// lookAtPool brings what the model knows of a pool's fullness up to date.
func (s *Service) lookAtPool(p *pool) {
	status, err := s.lvm.PoolStatus(p.group.name, p.name)
	if errors.Is(err, lvm.ErrNotFound) {
		// LVM gives the device another name, and takes it away for that moment,
		// when a pool gets its first volume or loses its last one. Only between
		// commands is a device that is not there missing.
		done, turnErr := s.take(s.work, p.group)
		if turnErr != nil {
			return // What is known stays; it is looked at again soon.
		}
		status, err = s.lvm.PoolStatus(p.group.name, p.name)
		done()
	}
	if err != nil && !errors.Is(err, lvm.ErrNotFound) {
		s.log.Warn("thin pool's status cannot be read", "group", p.group.name, "pool", p.name, "error", err)
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	s.model.setPoolStatus(p, status, err == nil)
}

// setPoolStatus takes a pool's status over, and tells watchers what that
// changes for its class and its volumes. The caller holds the lock.
func (m *model) setPoolStatus(p *pool, status lvm.PoolStatus, known bool) {
	if known && !status.Failed && (status.DataTotal < 1 || status.MetadataTotal < 1) {
		known = false
	}
	if p.known == known && p.status == status {
		return
	}
	before := p.trouble()
	p.known, p.status = known, status
	var changed []*volume
	if p.trouble() != before {
		for _, v := range m.volumes {
			if v.pool == p && v.rec.Phase != deleting {
				changed = append(changed, v)
			}
		}
	}
	m.publish(p.group, changed...)
}

// trouble is the type of what is wrong with the pool, or nothing.
func (p *pool) trouble() string {
	for _, c := range p.troubles() {
		return c.GetType()
	}
	return ""
}

// extendPool grows a pool's data or metadata by one step when its threshold is
// passed. It needs no intent: LVM's commit is the one effect, and what follows
// from it is in LVM's metadata.
func (s *Service) extendPool(ctx context.Context, p *pool) error {
	extents, bytes, err := s.planExtension(p)
	if err != nil {
		return err
	}
	g := p.group
	if extents > 0 {
		s.model.mu.Lock()
		more := extents - p.extents
		g.expanding += more
		s.model.mu.Unlock()
		redeemed := false
		// Where the extents were taken is for a scan to tell.
		err = s.changeBy(ctx, g, unknownSteps, -more,
			func(ctx context.Context) error { return s.lvm.ExtendPool(ctx, g.name, p.name, extents) },
			func() []*volume {
				redeemed = true
				g.expanding -= more
				p.extents = extents
				return nil
			})
		s.model.mu.Lock()
		if !redeemed {
			g.expanding -= more
		}
		s.model.mu.Unlock()
		s.log.Info("thin pool was extended", "group", g.name, "pool", p.name, "bytes", more*g.info.ExtentSize, "error", err)
	}
	if err == nil && bytes > 0 {
		// How much the spare for repairs grows with it is up to LVM.
		err = s.changeBy(ctx, g, unknownSteps, 0,
			func(ctx context.Context) error { return s.lvm.ExtendPoolMetadata(ctx, g.name, p.name, bytes) },
			func() []*volume { return nil })
		s.log.Info("thin pool's metadata was extended", "group", g.name, "pool", p.name, "bytes", bytes, "error", err)
	}
	if extents > 0 || bytes > 0 {
		s.crash("pool: extended")
		s.lookAtPool(p)
	}
	return err
}

// planExtension decides to which size, in extents, a pool's data is to grow,
// and to which size, in bytes, its metadata; zero means not at all. It notes why
// a pool that should grow cannot.
func (s *Service) planExtension(p *pool) (extents, bytes int64, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g := p.group
	stuck := ""
	defer func() {
		if p.stuck != stuck {
			p.stuck = stuck
			s.model.publish(g)
		}
		if stuck != "" {
			err = errors.New(stuck)
		}
	}()
	c := s.model.classOf(p)
	if c == nil || p.settings.AutoExtend == nil || !p.present || !p.known || p.status.Failed || p.status.NeedsCheck ||
		!g.present || g.stale || !g.wedged.IsZero() || g.info.MissingDevices > 0 {
		return 0, 0, nil
	}
	size := g.info.ExtentSize
	total := g.info.Extents * size
	free := max(0, g.allocatable-g.creating-g.expanding-(c.Reserve.Of(total)+size-1)/size)
	if p.dataHigh() || p.status.OutOfData {
		a := p.settings.AutoExtend
		step := max(1, (a.Step.Of(p.extents*size)+size-1)/size)
		most := p.extents + free
		if !a.Limit.IsZero() {
			most = min(most, a.Limit.Of(total)/size)
		}
		switch extents = min(p.extents+step, most); {
		case extents > p.extents:
			free -= extents - p.extents
		case free == 0:
			extents, stuck = 0, fmt.Sprintf("volume group %q has no room left beside what is promised and reserved", g.name)
		default:
			extents, stuck = 0, "its limit is reached (thin.autoExtend.limit)"
		}
	}
	if p.metadataHigh() {
		// Doubled, with its spare.
		more := min(p.metadata, maxPoolMetadata/size*size-p.metadata)
		switch {
		case more <= 0:
			stuck = "its metadata is as large as can be"
		case 2*more/size > free:
			stuck = fmt.Sprintf("volume group %q has no room left for more metadata beside what is promised and reserved", g.name)
		default:
			bytes = p.metadata + more
		}
	}
	return extents, bytes, nil
}

// classOf is the class that has the pool, or nil. The caller holds the lock.
func (m *model) classOf(p *pool) *class {
	if p.settings == nil {
		return nil
	}
	for _, c := range m.classes {
		if part := c.in(p.group); part != nil && part.pool == p {
			return c
		}
	}
	return nil
}

// attachPools gives each thin class its pools. The caller holds the lock.
func (m *model) attachPools() {
	for _, g := range m.groups {
		for _, p := range g.pools {
			p.settings = nil
		}
	}
	for _, c := range m.classes {
		if c.Type != config.Thin {
			continue
		}
		for _, part := range c.parts {
			part.pool = part.group.pool(c.Thin.Pool)
			part.pool.settings = c.Thin
		}
	}
}
