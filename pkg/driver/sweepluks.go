package driver

import "context"

// leakedMapping is the kind of a leak, beside those of mounts.
const leakedMapping = "mapping"

// sweepMappings closes the encrypted volumes that a previous run left open: those
// of ours that the kubelet has no record of having staged, while no call for the
// volume runs and the kernel does not find the mapping open. The kubelet
// writes its record before it has a volume staged, and removes it when it was
// unstaged.
func (s *sweeper) sweepMappings(ctx context.Context) {
	volumes, err := s.luks.Mappings()
	if err != nil {
		s.log.Error("cannot look for encrypted volumes that were left open", "error", err)
		return
	}
	for _, id := range volumes {
		if ctx.Err() != nil {
			return
		}
		closed, err := s.sweepMapping(id)
		switch {
		case err != nil:
			s.metrics.swept(leakedMapping, "kept")
			s.log.Warn("an encrypted volume stays open", "volume", id, "error", err)
		case closed:
			s.metrics.swept(leakedMapping, "removed")
			s.log.Info("closed an encrypted volume that was left open", "volume", id)
		}
	}
}

// sweepMapping closes one, unless the kubelet has a record of it.
func (s *sweeper) sweepMapping(id string) (closed bool, err error) {
	release, err := s.locks.take(id)
	if err != nil {
		return false, err
	}
	defer release()
	// Under the lock: a call that comes from now on is answered with Aborted.
	if err := s.kubelet.RecordsReliable(); err != nil {
		return false, err
	}
	if staged, err := s.kubelet.Recorded(id); err != nil || staged {
		return false, err
	}
	return true, s.encryption.closeLUKS(id)
}
