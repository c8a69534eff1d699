package lvmd

import (
	"context"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// KeepVolume implements lvmdv1.LVMDServer.
func (s *Service) KeepVolume(_ context.Context, r *lvmdv1.KeepVolumeRequest) (*lvmdv1.KeepVolumeResponse, error) {
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	v, done, err := s.inventory.ClaimToNote(r.GetId(), inventory.Kept)
	release()
	if err != nil || done {
		return &lvmdv1.KeepVolumeResponse{}, err
	}
	kept := v.Record()
	kept.Provisional = false
	err = s.journal.PutVolume(kept)
	s.crash("keep: written")
	if err != nil {
		v.Release()
		return nil, apierror.From("noting that volume "+kept.ID+" is kept", err)
	}
	v.SetRecord(kept)
	s.groups.Of(v).Remove.Set()
	return &lvmdv1.KeepVolumeResponse{}, nil
}
