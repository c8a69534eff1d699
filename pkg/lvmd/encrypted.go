package lvmd

import (
	"context"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// NoteEncrypted implements lvmdv1.LVMDServer. It runs no command.
func (s *Service) NoteEncrypted(_ context.Context, r *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error) {
	v, done, err := s.claimForNote(r.GetId())
	if err != nil || done {
		return &lvmdv1.NoteEncryptedResponse{}, err
	}
	noted := v.rec
	noted.Encrypted = true
	err = s.journal.put(noted)
	s.crash("note: written")
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v.claimed = false
	if err != nil {
		return nil, publicError("noting that volume "+noted.ID+" is encrypted", err)
	}
	v.rec.Encrypted = true
	s.model.publish(v.group, v)
	return &lvmdv1.NoteEncryptedResponse{}, nil
}

// claimForNote claims a volume that the node plugin has encrypted, so that no deletion writes
// its record meanwhile. It returns true when that was noted before, and claims nothing then.
func (s *Service) claimForNote(id string) (v *volume, done bool, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if s.isStopping() {
		return nil, false, errStopping
	}
	v, err = s.model.lookup(id, "")
	switch {
	case err != nil:
		return nil, false, err
	case v.rec.Ident.Encryption != names.EncryptionLUKS:
		return nil, false, invalidField("id", "volume %s has encryption %q; only volumes with %q are noted", id, v.rec.Ident.Encryption, names.EncryptionLUKS)
	case v.rec.Encrypted:
		return v, true, nil
	case v.rec.Phase != ready || v.claimed:
		return nil, false, operationPending("another operation on volume %s is under way", id)
	}
	v.claimed = true
	return v, false, nil
}
