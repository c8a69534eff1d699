package driver

import "context"

const leakedMapping = "mapping"

// sweepMappings closes leaked mappings: those without a staging record of the
// kubelet, while no call for the volume runs and the kernel does not report the
// mapping open. The kubelet writes the record before it stages a volume and
// removes it after unstaging.
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

func (s *sweeper) sweepMapping(id string) (closed bool, err error) {
	release, err := s.locks.take(id)
	if err != nil {
		return false, err
	}
	defer release()
	// Under the lock: a later call gets Aborted.
	if err := s.kubelet.RecordsReliable(); err != nil {
		return false, err
	}
	if staged, err := s.kubelet.Recorded(id); err != nil || staged {
		return false, err
	}
	return true, s.encryption.closeLUKS(id)
}
