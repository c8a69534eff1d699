package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// change is changeBy for the commands that raise the sequence number by one.
func (s *Service) change(ctx context.Context, g *group, delta int64, run func(context.Context) error, applied func() []*volume) error {
	return s.changeBy(ctx, g, 1, delta, run, applied)
}

// unknownSteps has the group scanned after the command, whatever it did.
const unknownSteps = 0

// changeBy runs one command that changes a group, in its turn, and leaves the
// model true to what came of it.
//
// steps is by how much the command raises the group's sequence number, and
// delta is by how many extents the command changes what is allocatable when
// it succeeds; applied is then called with the model locked, makes the rest of
// the change, and returns the volumes whose report it changed. When the
// sequence number shows that nothing else happened to the group, no further
// command is needed; otherwise, and after any failure, the group is scanned.
//
// ctx bounds only the wait for the turn. A command that has started runs to
// its end or its own deadline: half a change is worse than a late one.
func (s *Service) changeBy(ctx context.Context, g *group, steps uint64, delta int64, run func(context.Context) error, applied func() []*volume) error {
	done, err := s.take(ctx, g)
	if err != nil {
		return err
	}
	defer done()
	s.model.mu.Lock()
	g.accounted = false
	s.model.mu.Unlock()
	err = run(s.work)
	if err != nil {
		s.doubt(g)
	}
	s.noteDisks(g, err)
	switch {
	case errors.Is(err, lvm.ErrTimedOut):
		s.wedge(g, err)
		return err
	case err != nil:
		// What is scanned tells what was done; a failed scan leaves the group stale.
		if rescanErr := s.rescan(g, nil); rescanErr != nil {
			s.log.Error("scanning after a failed command", "group", g.name, "error", rescanErr)
		}
		return err
	}
	now, ok := s.expected(g, steps)
	var where lvm.Placement
	if ok {
		where, ok = s.whereabouts(g, now)
	}
	if ok {
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		g.metadata = now
		g.allocatable += delta
		s.model.relocate(g, where)
		changed := applied()
		if delta < 0 && !g.accounted {
			g.clean = clean{}
		}
		s.model.publish(g, changed...)
		return nil
	}
	s.model.mu.Lock()
	s.model.distrust(g)
	s.model.mu.Unlock()
	if err := s.rescan(g, applied); err != nil {
		s.log.Error("scanning after a change", "group", g.name, "error", err)
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		// The command succeeded: count with its effect until a scan does.
		if g.stale {
			g.allocatable += delta
			s.model.publish(g, applied()...)
		}
	}
	return nil
}

// take waits for the group's turn.
func (s *Service) take(ctx context.Context, g *group) (func(), error) {
	done, err := g.turns.take(ctx)
	if err != nil {
		return nil, err
	}
	s.model.mu.Lock()
	wedged := g.wedged
	s.model.mu.Unlock()
	if !wedged.IsZero() {
		done()
		return nil, notAnswering(g.name, wedged)
	}
	return done, nil
}

// expected reads the group's metadata and tells whether exactly so many changes
// happened since the model last looked. The caller has the group's turn.
func (s *Service) expected(g *group, steps uint64) (lvm.Metadata, bool) {
	now, err := s.lvm.Metadata(g.name)
	if err != nil {
		return lvm.Metadata{}, false
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return now, !g.stale && steps != unknownSteps && now.Seqno == g.metadata.Seqno+steps && now.Unreadable == g.metadata.Unreadable
}

// rescan makes the model of a group equal to the disk, and what that settles
// durable. applied, which may be nil, is called in the same instant of the
// model. The caller has the group's turn. When the scan fails, the group is
// stale, applied was not called, and the refresh loop tries again.
func (s *Service) rescan(g *group, applied func() []*volume) error {
	found, err := s.scan(s.work, []string{g.name})
	if err == nil {
		changed := s.mend(g, found)
		if s.cameBack(g, found) && s.makeDevices(s.work, found) || changed {
			found, err = s.lvm.Scan(s.work, []string{g.name})
		}
	}
	if err != nil {
		s.model.mu.Lock()
		g.stale = true
		s.model.mu.Unlock()
		if errors.Is(err, lvm.ErrTimedOut) {
			s.wedge(g, err)
		}
		return fmt.Errorf("scanning volume group %q: %w", g.name, err)
	}
	devices, metadata := s.devicesOf(found), s.metadataOf(found)
	s.model.mu.Lock()
	var changed []*volume
	if applied != nil {
		changed = applied()
	}
	news := s.merge(g, found, devices, metadata)
	s.model.publish(g, append(changed, news.changed...)...)
	s.model.mu.Unlock()
	return s.settle(news)
}

// cameBack tells whether a scan found a group, or a disk of it, that the model
// misses: its volumes have no devices when it was away while the machine started.
func (s *Service) cameBack(g *group, found []lvm.Group) bool {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return len(found) == 1 && (!g.present || found[0].MissingDevices < g.info.MissingDevices)
}

func notAnswering(group string, since time.Time) error {
	return commandTimedOut("LVM has not answered for volume group %q since %s", group, since.UTC().Format(time.RFC3339))
}
