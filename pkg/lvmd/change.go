package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// change runs one command that changes a group, in its turn, and leaves the
// model true to what came of it.
//
// delta is by how many extents the command changes what is allocatable when
// it succeeds; applied is then called with the model locked, to make the rest
// of the change and publish it. When the sequence number shows that nothing
// else happened to the group, no further command is needed; otherwise, and
// after any failure, the group is scanned.
//
// ctx bounds only the wait for the turn. A command that has started runs to
// its end or its own deadline: half a change is worse than a late one.
func (s *Service) change(ctx context.Context, g *group, delta int64, run func(context.Context) error, applied func()) error {
	done, err := s.take(ctx, g)
	if err != nil {
		return err
	}
	defer done()
	err = run(s.work)
	if err == nil && s.expected(g) {
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		g.info.Seqno++
		g.allocatable += delta
		applied()
		return nil
	}
	if errors.Is(err, lvm.ErrTimedOut) {
		s.wedge(g, err)
		return err
	}
	rescanErr := s.rescan(g)
	if err != nil {
		return err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if rescanErr != nil {
		// The command succeeded: count with its effect until a scan does.
		g.allocatable += delta
	}
	applied()
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
		return nil, commandTimedOut("LVM has not answered for volume group %q since %s", g.name, wedged.UTC().Format(time.RFC3339))
	}
	return done, nil
}

// expected tells whether exactly one change happened to the group since the
// model last looked. The caller has the group's turn.
func (s *Service) expected(g *group) bool {
	seqno, err := s.lvm.Seqno(g.name)
	if err != nil {
		return false
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return !g.stale && seqno == g.info.Seqno+1
}

// rescan makes the model of a group equal to the disk. The caller has the
// group's turn. After an error the group is stale and the refresh loop tries
// again.
func (s *Service) rescan(g *group) error {
	found, err := s.lvm.Scan(s.work, []string{g.name})
	if err != nil {
		s.model.mu.Lock()
		g.stale = true
		s.model.mu.Unlock()
		if errors.Is(err, lvm.ErrTimedOut) {
			s.wedge(g, err)
		}
		return fmt.Errorf("scanning volume group %q: %w", g.name, err)
	}
	devices := s.devicesOf(found)
	s.model.mu.Lock()
	vanished, adopted := s.merge(g, found, devices)
	s.model.mu.Unlock()
	if err := s.settle(adopted); err != nil {
		return err
	}
	return s.journal.remove(vanished...)
}
