package lvmd

import (
	"context"
	"slices"
	"time"
)

// blindInterval is how often a group is scanned whose sequence number cannot
// be read.
const blindInterval = time.Minute

// refreshLoop has each group looked at, at every tick and whenever block devices
// come or go.
func (s *Service) refreshLoop(ctx context.Context) {
	tick := time.NewTicker(s.pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.blockEvents:
			wake(s.provider.wake)
			s.model.mu.Lock()
			for _, g := range s.model.groups {
				g.recheck = true
			}
			s.model.mu.Unlock()
		case <-ctx.Done():
			return
		}
		for _, g := range s.model.groups {
			wake(g.look)
		}
	}
}

// lookLoop notices what others did to a group: it compares the sequence number on
// the disks, and the numbers of the volumes' devices, with the model's. It runs a
// command only when something changed. A disk that answers late, or never, holds up
// its own group only.
func (s *Service) lookLoop(ctx context.Context, g *group) {
	for {
		select {
		case <-g.look:
		case <-ctx.Done():
			return
		}
		s.refresh(ctx, g)
		s.retryPools(ctx, g)
		s.lookAtRAID(g)
		s.forgive(g)
	}
}

// refresh scans a group if it may not be what the model says.
func (s *Service) refresh(ctx context.Context, g *group) {
	if !s.differs(g) && !s.renumbered(g) {
		return
	}
	done, err := s.take(ctx, g)
	if err != nil {
		return
	}
	defer done()
	// Our own command may have made the difference, and accounted for it.
	if !s.differs(g) && !s.renumbered(g) {
		return
	}
	if err := s.rescan(g, nil); err != nil {
		s.log.Warn("scanning failed", "group", g.name, "error", err)
		return
	}
	_, err = s.lvm.Metadata(g.name)
	s.model.mu.Lock()
	if blind := err != nil && g.present && g.info.MissingDevices == 0; blind != g.blind {
		g.blind = blind
		s.log.Warn("whether others change the group can be told from its disks", "group", g.name, "can", !blind, "error", err)
	}
	s.model.mu.Unlock()
	g.wakeReaper()
}

// differs tells whether a group's disks say something else than the model.
func (s *Service) differs(g *group) bool {
	now, err := s.lvm.Metadata(g.name)
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	switch {
	case s.waits(g):
		return false
	case g.stale || err == nil && (now.Seqno != g.metadata.Seqno || now.Unreadable != g.metadata.Unreadable):
		return true
	case !g.present || g.info.MissingDevices > 0:
		// It can only come back with a device, or by its name.
		if g.refused != "" && time.Since(g.scanned) > s.probeInterval {
			return true // the other group may be away, or accepted by now
		}
		return g.recheck || !g.present && err == nil
	case g.doubtful && time.Since(g.scanned) > s.probeInterval:
		return true // what could not be mended is tried again
	}
	return err != nil && (!g.blind || g.recheck || time.Since(g.scanned) > blindInterval)
}

// waits tells whether a group is not to be scanned now. The caller holds the
// model's lock.
func (s *Service) waits(g *group) bool {
	// Whoever probes a wedged group scans it; and bursts of changes are scanned
	// once, at the next tick.
	return !g.wedged.IsZero() || time.Since(g.scanned) < s.pollInterval/2
}

// renumbered tells whether a volume of a group has got a device, has lost the one
// that it had, or has it with another number: the metadata says nothing of what an
// administrator activates. It asks the kernel once for all volumes.
func (s *Service) renumbered(g *group) bool {
	numbers, err := s.lvm.Numbers(g.name)
	if err != nil {
		return false
	}
	var appeared []*volume
	s.model.mu.Lock()
	if !g.present || s.waits(g) {
		s.model.mu.Unlock()
		return false
	}
	for id, v := range s.model.volumes {
		if v.group != g || v.op != nil || v.claimed || v.rec.Phase == deleting {
			continue
		}
		of := numbers.Volumes
		if v.isEncrypted() {
			of = numbers.Encrypted
		}
		switch now, there := of[id]; {
		case v.device.Path == "" && there:
			appeared = append(appeared, v)
		case v.device.Path != "" && (!there || now != v.device.Number()):
			s.model.mu.Unlock()
			return true
		}
	}
	s.model.mu.Unlock()
	return slices.ContainsFunc(appeared, func(v *volume) bool {
		// It may have no table, or no right node: a scan would not find it then.
		_, err := s.deviceOf(g.name, v.rec.ID, v.isEncrypted())
		return err == nil
	})
}

// wedge notes that LVM does not answer for a group, and has it probed until
// it does.
func (s *Service) wedge(g *group, cause error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g.stale = true
	if !g.wedged.IsZero() || s.work.Err() != nil {
		return
	}
	g.wedged = time.Now()
	s.model.publish(g)
	s.health.set(false)
	s.log.Error("LVM does not answer; operations on the volume group fail until it does", "group", g.name, "error", cause)
	if !s.isStopping() {
		s.spawn(func() { s.probeWedged(s.work, g) })
	}
}

// probeWedged scans a wedged group again and again until that works.
func (s *Service) probeWedged(ctx context.Context, g *group) {
	for {
		select {
		case <-time.After(s.probeInterval):
		case <-ctx.Done():
			return
		}
		done, err := g.turns.take(ctx)
		if err != nil {
			return
		}
		err = s.rescan(g, nil)
		done()
		if err == nil {
			break
		}
	}
	s.model.mu.Lock()
	g.wedged = time.Time{}
	healthy := true
	for _, other := range s.model.groups {
		healthy = healthy && other.wedged.IsZero()
	}
	s.model.publish(g)
	s.model.mu.Unlock()
	s.health.set(healthy && !s.isStopping())
	s.log.Info("LVM answers again", "group", g.name)
	g.wakeReaper()
}
