package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

type creator struct {
	*core
	format  func(ctx context.Context, device string, o filesystem.FormatOptions) error
	probe   func(device string) (filesystem.Info, error)
	setUUID func(device string, t filesystem.Type, uuid string) error

	formatting, copying *command.Places
	copyCheckpoint      int64
	// answering counts operations given up after copyTimeout.
	copyTimeout, copyLook time.Duration
	answering             blockdev.Guard
	keyless               wakeup.Signal
}

// CreateVolume implements lvmdv1.LVMDServer.
func (s *Service) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	ident, err := spec.FromRequest(r)
	if err != nil {
		return nil, err
	}
	limits, err := spec.Limits(r.GetIoLimits())
	if err != nil {
		return nil, err
	}
	a, err := s.creator.admitVolume(ident, limits, r.GetProvisional())
	if err != nil {
		return nil, err
	}
	if a.Creation == nil {
		return &lvmdv1.CreateVolumeResponse{Volume: a.Ready}, nil
	}
	v, err := wait(ctx, a.Creation)
	if err != nil {
		return nil, apierror.From("creating the volume", err)
	}
	return &lvmdv1.CreateVolumeResponse{Volume: v}, nil
}

func (s *creator) admitVolume(ident spec.Identity, limits iolimit.Limits, provisional bool) (inventory.Admission, error) {
	release, err := s.admit()
	if err != nil {
		return inventory.Admission{}, err
	}
	defer release()
	a, err := s.inventory.AdmitCreation(ident, limits, provisional)
	if err != nil {
		return inventory.Admission{}, err
	}
	s.beginAdmitted(a)
	return a, nil
}

func (s *creator) admitSnapshot(ident spec.Identity) (inventory.Admission, error) {
	release, err := s.admit()
	if err != nil {
		return inventory.Admission{}, err
	}
	defer release()
	a, err := s.inventory.AdmitSnapshot(ident)
	if err != nil {
		return inventory.Admission{}, err
	}
	s.beginAdmitted(a)
	return a, nil
}

func (s *creator) beginAdmitted(a inventory.Admission) {
	switch {
	case !a.New:
	case a.Source != nil && !a.Source.Snapshot:
		s.begin(a, s.makeCopy)
	default:
		s.begin(a, s.make)
	}
}

// wait returns the result of op. If ctx ends first, op loses this caller.
func wait(ctx context.Context, op *inventory.Creation) (*lvmdv1.Volume, error) {
	select {
	case <-op.Done():
		return op.Result()
	case <-ctx.Done():
		op.Leave()
		return nil, ctx.Err()
	}
}

// steps carry out a creation; from is nil if the volume has no source.
type steps func(ctx context.Context, v *inventory.Volume, from *inventory.Source) error

func (s *creator) begin(a inventory.Admission, take steps) {
	v := a.Volume
	ctx, cancel := context.WithCancel(onBehalfOf(s.work, v))
	a.Creation.Begin(cancel)
	s.spawn(func() {
		defer cancel()
		err := take(ctx, v, a.Source)
		if err != nil {
			s.log.Info("a volume was not made", "volume", v.ID(), "name", v.Ident().Name, "error", err)
			err = apierror.Reworded(apierror.From("creating the volume", err), v.ID(), "VOLUME", v.Ident().FSUUID, "UUID")
		}
		v.End(a.Creation, err)
		if err == nil {
			s.groups.Of(v).Remove.Set()
		}
	})
}

// make leaves nothing, or a tombstone, on failure.
func (s *creator) make(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	err := s.checkSectors(v, from)
	if err == nil {
		err = s.journal.PutVolume(v.Record())
	}
	if err != nil {
		v.UndoCreation(false)
		return err
	}
	s.crash("create: intent written")
	if err := s.carve(ctx, v); err != nil {
		s.undo(v)
		if from != nil && from.Snapshot && errors.Is(err, lvm.ErrNotFound) {
			return &sourceVanishedError{from.Volume.ID(), err}
		}
		return err
	}
	s.crash("create: carved")
	return s.ended(v, s.finish(ctx, v, from))
}

func (s *creator) carve(ctx context.Context, v *inventory.Volume) error {
	g := s.groups.Of(v)
	return s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		ctx = volumegroup.ForClassOf(ctx, v)
		c, err := v.PlanCreation()
		switch {
		case err != nil:
			return nil, err
		case c.Snapshot != nil:
			return inventory.Created(v, nil, nil), s.lvm.Snapshot(ctx, *c.Snapshot)
		case c.Thin != nil:
			return inventory.Created(v, nil, nil), s.lvm.CreateThin(ctx, *c.Thin)
		}
		if err := s.lvm.Create(ctx, *c.Create); err != nil {
			return nil, err
		}
		segments, unmapped := s.lvm.Mapping(g.Name(), v.ID())
		return inventory.Created(v, segments, unmapped), nil
	})
}

// undo trusts the scan after the failed command on whether LVM created the volume.
func (s *creator) undo(v *inventory.Volume) {
	if v.UndoCreation(true) {
		s.markDeleted(v)
		return
	}
	if err := s.journal.RemoveVolumes([]string{v.ID()}); err != nil {
		s.log.Error("intent is left in the journal until the next start", "volume", v.ID(), "error", err)
	}
}

// ended undoes a creation that failed after LVM created the volume, except a copy that the next
// process run resumes.
func (s *creator) ended(v *inventory.Volume, err error) error {
	err = apierror.Begun(err)
	if err == nil || s.work.Err() != nil && v.Record().Copied > 0 {
		return err
	}
	v.Group().NoteDisks(err)
	s.markDeleted(v)
	return err
}

func (s *creator) finish(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	if err := s.prepare(ctx, v, from); err != nil {
		return err
	}
	s.crash("create: formatted")
	return s.complete(ctx, v, from)
}

func (s *creator) complete(ctx context.Context, v *inventory.Volume, _ *inventory.Source) error {
	if err := s.handOut(ctx, v); err != nil {
		return err
	}
	done := v.Record()
	done.Phase, done.Copied, done.Source, done.Tagged = spec.Ready, 0, blockdev.WriteMark{}, false
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.journal.PutVolume(done, s.groups.Remember(s.groups.Of(v))); err != nil {
		return err
	}
	s.crash("create: ready")
	return nil
}

// handOut removes the making tag if only that tag shows whether the volume is complete. The
// command also untags other complete volumes, so a burst of creations needs few. It queues as
// the daemon, not the tenant: complete volumes need not wait behind others' creations.
// reclaim.Reclaimer removes all other tags later.
func (s *creator) handOut(ctx context.Context, v *inventory.Volume) error {
	// Another volume's command may remove this tag, which ends the wait for the slot.
	waiting, stop := context.WithCancel(fairqueue.WithoutTenant(ctx))
	defer stop()
	if !inventory.Complete(v, stop) {
		return nil
	}
	g := s.groups.Of(v)
	err := s.groups.Change(waiting, g, func(ctx context.Context) (inventory.Effect, error) {
		batch, tags := inventory.ToUntag(g.Group, v, reclaim.MaxUntagged)
		if len(batch) == 0 {
			return nil, nil
		}
		err := s.untag(ctx, g, batch, tags)
		if err != nil && len(batch) > 1 {
			// Retry alone: one of the others may be gone.
			batch = batch[:1]
			err = s.untag(ctx, g, batch, tags)
		}
		return inventory.Untagged(batch, tags), err
	})
	if isOff := waiting.Err() != nil && ctx.Err() == nil; err != nil && !isOff {
		return err
	}
	s.crash("create: untagged")
	return nil
}

func (s *creator) untag(ctx context.Context, g *volumegroup.Group, batch []*inventory.Volume, tags []string) error {
	return s.lvm.Untag(volumegroup.ForClassOf(ctx, batch...), g.Name(), reclaim.IDs(batch), tags...)
}

func (s *creator) prepare(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	if from != nil {
		if err := s.fillFrom(ctx, v, from); err != nil {
			return err
		}
		return s.ownUUID(ctx, v)
	}
	device, err := s.blank(ctx, v)
	if err != nil {
		return err
	}
	v.SetDevice(device)
	if v.Ident().Block || v.Ident().IsLUKS() {
		return ctx.Err()
	}
	disks := volumegroup.Disks(s.lvm, v)
	_, release, err := s.formatting.Take(ctx, disks, disks)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, formatTimeout)
	defer cancel()
	o := v.Ident().FormatOptions()
	switch err := s.format(ctx, device.Path, o); {
	case err == nil:
		return nil
	case o.Settings != "" && filesystem.Refused(err):
		return apierror.FormatRefused(string(o.Settings), err)
	default:
		return fmt.Errorf("formatting: %w", err)
	}
}

func (s *creator) blank(ctx context.Context, v *inventory.Volume) (lvm.Device, error) {
	if v.IsEncrypted() {
		return s.encrypt(ctx, v)
	}
	device, err := s.groups.Device(v)
	if err != nil {
		return lvm.Device{}, fmt.Errorf("the new volume's device: %w", err)
	}
	h, err := s.groups.Open(ctx, v)
	if err != nil {
		return lvm.Device{}, fmt.Errorf("the new volume's device: %w", err)
	}
	err = s.clearNew(ctx, v, h)
	if err = errors.Join(err, h.Close()); err != nil {
		return lvm.Device{}, fmt.Errorf("clearing the new volume: %w", err)
	}
	return device, nil
}

// ownUUID gives a clone its own file system UUID if the kernel would otherwise refuse to mount
// it beside its source.
func (s *creator) ownUUID(ctx context.Context, v *inventory.Volume) error {
	i := v.Ident()
	if i.Block || i.Snapshot || !filesystem.SharesNoUUID(i.FSType) {
		return ctx.Err()
	}
	device, err := s.groups.Device(v)
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	if info, err := s.probe(device.Path); err == nil && info.UUID == i.FSUUID {
		return ctx.Err()
	}
	return errors.Join(s.setUUID(device.Path, i.FSType, i.FSUUID), ctx.Err())
}
