package lvmd

import (
	"context"
	"errors"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
)

// A volume with names.EncryptionLUKS is encrypted by its user, with a key that
// lvmd never sees. lvmd makes room for the header, hands the volume out with
// nothing where that will be, and overwrites it at the end.

// isLUKS tells whether a volume's user encrypts it.
func (i identity) isLUKS() bool { return i.Encryption == names.EncryptionLUKS }

// headerBytes is what a volume has besides what its user asked for.
func (i identity) headerBytes() int64 {
	if i.isLUKS() {
		return luks.HeaderBytes
	}
	return 0
}

// checkLUKS refuses what cannot be had of a volume that its user formats.
func (i identity) checkLUKS() error {
	if i.isLUKS() && i.Profile != filesystem.Usual {
		return invalidField("profile", "%q with encryption %s; what outlives a restart of the machine is not for that profile", i.Profile, i.Encryption)
	}
	return nil
}

// settleLUKS decides how far a volume had come that the journal did not know. A
// header says that somebody had it, whatever of it was made. Only where it is
// another volume's, as what lay there before, was the creation never finished.
func (s *Service) settleLUKS(rec *record, path string) {
	state, err := s.inspect(path, rec.ID)
	switch {
	case err == nil:
		s.log.Info("adopted an encrypted volume", "volume", rec.ID, "state", state)
	case errors.Is(err, luks.ErrForeign), errors.Is(err, luks.ErrDamaged):
		rec.Phase = unfinished
		s.log.Warn("adopted volume does not hold the encrypted volume that it was made for; it is not handed out", "volume", rec.ID, "error", err)
	default:
		s.log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
	}
}

// eraseHeader overwrites the header of a tombstone, durably and before anything
// else is done to it, whatever its class says: without it, nobody can decrypt
// what is left, who has the key or not. The handle is of its device, or nil;
// the one that is returned is the tombstone's from now on.
func (s *Service) eraseHeader(ctx context.Context, v *volume, h lvm.Handle) (lvm.Handle, error) {
	if h == nil {
		var err error
		if h, err = s.openTombstone(ctx, v); err != nil {
			return nil, err
		}
		s.model.mu.Lock()
		v.handle = h
		s.model.mu.Unlock()
	}
	if err := h.Overwrite(0, min(luks.HeaderBytes, h.Size())); err != nil {
		return h, err
	}
	if err := h.Sync(); err != nil {
		return h, err
	}
	s.crash("delete: header erased")
	return h, nil
}
