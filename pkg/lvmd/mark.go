package lvmd

import (
	"context"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// A deletion is acknowledged once it is in the journal. Before anything else is done to the
// volume it is marked as deleted in LVM, too, by tagDeleted. So a node that loses its
// journal afterwards goes on with the deletion, and never offers a volume that is partly
// wiped. The mark is not awaited by the caller: that would have every deletion wait for the
// group's exclusive slot.

// maxMarked bounds how many volumes one command marks, as maxBatch does.
const maxMarked = 50

// markAttempts is how often lvmd tries to mark a volume. Then the deletion goes on without:
// a group of which the metadata is full, for example, takes no more tags, and deleting is
// what helps it.
const markAttempts = 3

// needsMark reports whether LVM has to be told that a tombstone is one. What LVM has not
// finished making is known for that by itself. The caller holds the model's lock.
func (v *volume) needsMark() bool {
	return v.rec.Phase == deleting && !v.marked && !v.halfMade && v.group.exists[v.rec.ID]
}

// nextToMark picks tombstones that are to be marked. When all of them must wait, it
// returns until when; the zero time means for an event.
func (s *Service) nextToMark(g *group) (batch []*volume, retry time.Time) {
	now := time.Now()
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if !g.canFree() {
		return nil, time.Time{}
	}
	for _, v := range s.model.volumes {
		switch {
		case v.group != g || !v.needsMark():
		case v.failures >= markAttempts:
			s.log.Warn("a deleted volume cannot be marked; its deletion goes on, and would begin anew if the journal were lost", "volume", v.rec.ID)
			v.marked, v.failures = true, 0
			wake(g.reap)
		case v.retryAt.After(now):
			retry = earlier(retry, v.retryAt)
		case len(batch) < maxMarked:
			batch = append(batch, v)
		}
	}
	return batch, retry
}

// markBatch marks tombstones as deleted, and has them wiped.
func (s *Service) markBatch(ctx context.Context, g *group, batch []*volume) error {
	ids := idsOf(batch)
	err := s.changeBy(ctx, g, uint64(len(batch)), 0,
		func(ctx context.Context) error { return s.lvm.Tag(forClassOf(ctx, batch...), g.name, ids, tagDeleted) },
		func() []*volume {
			for _, v := range batch {
				v.marked, v.failures = true, 0
			}
			return nil
		})
	if err != nil {
		return err
	}
	s.crash("delete: marked")
	wake(g.reap)
	return nil
}

// isMarked reports whether a logical volume is that of a deleted volume.
func isMarked(lv *lvm.Volume) bool { return slices.Contains(lv.Tags, tagDeleted) }

func idsOf(volumes []*volume) []string {
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.rec.ID
	}
	return ids
}
