package lvmd

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// DeleteVolume implements lvmdv1.LVMDServer. It runs no command: it makes the
// volume a tombstone and leaves the rest to the reaper.
func (s *Service) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	v, err := s.claimForDeletion(r)
	if err != nil {
		if status.Code(err) == codes.NotFound {
			return &lvmdv1.DeleteVolumeResponse{}, nil
		}
		return nil, err
	}
	// From here on the volume is marked as busy: nothing else changes it.
	handle, err := s.open(ctx, v)
	switch {
	case err == nil, errors.Is(err, lvm.ErrNotFound):
		// Without a device nobody can have it open.
	case errors.Is(err, lvm.ErrBusy):
		s.unclaim(v)
		return nil, volumeInUse(v.rec.ID, err)
	default:
		// A device that cannot be opened may still be mounted: ask the kernel.
		d, statErr := s.deviceOf(v.group.name, v.rec.ID, v.isEncrypted())
		if statErr != nil || d.OpenCount > 0 {
			s.unclaim(v)
			return nil, publicError("deleting volume "+v.rec.ID, err)
		}
	}
	tombstone := v.rec
	tombstone.Phase = deleting
	if err := s.journal.put(tombstone); err != nil {
		if handle != nil {
			_ = handle.Close()
		}
		s.unclaim(v)
		return nil, publicError("deleting volume "+v.rec.ID, err)
	}
	s.crash("delete: tombstone written")
	handle = s.eraseKey(v, handle)
	s.model.mu.Lock()
	v.claimed, v.handle = false, handle
	s.model.bury(v)
	s.model.publish(v.group, v)
	s.model.mu.Unlock()
	v.group.wakeReaper()
	return &lvmdv1.DeleteVolumeResponse{}, nil
}

func (s *Service) claimForDeletion(r *lvmdv1.DeleteVolumeRequest) (*volume, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if s.isStopping() {
		return nil, errStopping
	}
	v, err := s.model.lookup(r.GetId(), r.GetName())
	switch {
	case err != nil:
		return nil, err
	case v.op != nil && v.op.isUnattended():
		v.op.stop()
		return nil, operationPending("volume %s is being made, which is cancelled now", v.rec.ID)
	case v.expansion != nil && v.expansion.cancel != nil:
		v.expansion.cancel()
		return nil, operationPending("volume %s is being expanded, which is cancelled now", v.rec.ID)
	case v.op != nil || v.claimed || v.pins > 0:
		return nil, operationPending("another operation on volume %s is under way", v.rec.ID)
	}
	v.claimed = true
	return v, nil
}

func (s *Service) unclaim(v *volume) {
	s.model.mu.Lock()
	v.claimed = false
	s.model.mu.Unlock()
}

// openPatience is for how long a device that somebody has open is tried again:
// udev, where the host runs it, looks into a device for a moment after it
// appeared or was closed.
const openPatience = 500 * time.Millisecond

// open opens a volume's device for lvmd alone.
func (s *Service) open(ctx context.Context, v *volume) (lvm.Handle, error) {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		h, err := s.openDevice(v)
		if !errors.Is(err, lvm.ErrBusy) || errors.Is(err, lvm.ErrClaimed) {
			return h, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}
