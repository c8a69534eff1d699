package lvmd

import (
	"context"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// maxBatch bounds how many volumes one command removes: it bounds how long
// others wait for the turn, and the command's words: a lasting lvm process
// takes some sixty.
const maxBatch = 56

// removeLoop marks the group's new tombstones and frees the wiped ones until ctx is done.
// While one command runs, more of them gather for the next: the busier it is, the fewer
// commands there are for each volume.
func (s *Service) removeLoop(ctx context.Context, g *group) {
	for ctx.Err() == nil {
		do := s.markBatch
		batch, retry := s.nextToMark(g)
		if len(batch) == 0 {
			var again time.Time
			do = s.removeBatch
			batch, again = s.nextToRemove(g)
			retry = soonest(retry, again)
		}
		if len(batch) == 0 {
			if !sleepUntil(ctx, g.remove, retry) {
				return
			}
			continue
		}
		if err := do(ctx, g, batch); err != nil && ctx.Err() == nil {
			s.log.Warn("marking or removing deleted volumes failed and will be tried again", "group", g.name, "volumes", len(batch), "error", err)
			for _, v := range batch {
				s.postpone(v)
			}
		}
	}
}

func (s *Service) nextToRemove(g *group) (batch []*volume, retry time.Time) {
	now := time.Now()
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if !g.canFree() {
		return nil, time.Time{}
	}
	for _, v := range s.model.volumes {
		switch {
		case v.group != g || v.rec.Phase != deleting || !v.wiped:
		case len(batch) > 0 && (batch[0].pool == nil) != (v.pool == nil):
			// One command removes either thin volumes or others: by how much it
			// raises the sequence number depends on that.
		case v.retryAt.After(now):
			retry = earlier(retry, v.retryAt)
		case len(batch) < maxBatch:
			batch = append(batch, v)
		}
	}
	return batch, retry
}

func (s *Service) removeBatch(ctx context.Context, g *group, batch []*volume) error {
	ids := idsOf(batch)
	var extents int64
	steps := uint64(1)
	s.model.mu.Lock()
	if batch[0].pool != nil {
		steps = lvm.ThinSteps * uint64(len(batch))
	}
	for _, v := range batch {
		extents += v.takes(v.extents)
	}
	s.model.mu.Unlock()
	err := s.changeBy(ctx, g, steps, extents,
		func(ctx context.Context) error { return s.lvm.Remove(forClassOf(ctx, batch...), g.name, ids) },
		func() []*volume {
			for _, v := range batch {
				delete(g.exists, v.rec.ID)
				g.clean.give(v.pieces)
				if v.pool != nil {
					v.pool.virtual -= v.extents
				} else {
					g.fragments += v.segments
				}
				s.model.drop(v)
			}
			s.model.boundFragments(g)
			return nil
		})
	if err != nil {
		return err
	}
	s.crash("delete: removed")
	if err := s.journal.remove(ids, s.remember(g)); err != nil {
		// The next start finds tombstones without volumes, and forgets them.
		s.log.Error("tombstones are left in the journal", "group", g.name, "error", err)
	}
	return nil
}
