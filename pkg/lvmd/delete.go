package lvmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// DeleteVolume implements lvmdv1.LVMDServer. It runs no command: it makes the volume a
// tombstone, which package reclaim frees.
func (s *Service) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	v, err := s.claimForDeletion(inventory.ToDelete{ID: r.GetId(), Name: r.GetName(), OnlyProvisional: r.GetOnlyProvisional()})
	switch {
	case apierror.IsNotFound(err):
		return &lvmdv1.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	}
	handle, err := s.openUnused(ctx, v)
	if err == nil {
		err = volumegroup.CheckDependents(ctx, s.groups, v)
	}
	if err == nil {
		err = s.putTombstone(v)
	}
	if err != nil {
		if handle != nil {
			_ = handle.Close()
		}
		v.Release()
		return nil, apierror.From("deleting volume "+v.ID(), err)
	}
	s.crash("delete: tombstone written")
	if left := v.MarkDeleted(s.reclaimer.EraseKey(v, handle)); left != nil {
		_ = left.Close()
	}
	s.groups.Of(v).Reclaim()
	return &lvmdv1.DeleteVolumeResponse{}, nil
}

func (s *Service) claimForDeletion(d inventory.ToDelete) (*inventory.Volume, error) {
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	defer release()
	return s.inventory.ClaimForDeletion(d)
}

// openUnused returns a nil handle for a volume without a device, or with one that cannot be
// opened but is not in use.
func (s *Service) openUnused(ctx context.Context, v *inventory.Volume) (blockdev.Handle, error) {
	handle, err := s.groups.Open(ctx, v)
	switch {
	case err == nil, errors.Is(err, lvm.ErrNotFound):
		// Without a device, no process has it open.
		return handle, nil
	case errors.Is(err, lvm.ErrBusy):
		return nil, apierror.VolumeInUse(v.ID(), s.withHolders(v, err))
	}
	// A device that fails to open may still be mounted: ask the kernel.
	if d, statErr := s.groups.Device(v); statErr != nil || d.OpenCount > 0 {
		return nil, err
	}
	return nil, nil
}

func (s *Service) withHolders(v *inventory.Volume, err error) error {
	for _, c := range v.Report().GetFound() {
		if c.GetType() == conditions.MountedElsewhere {
			return fmt.Errorf("%w: %s", err, c.GetMessage())
		}
	}
	return err
}
