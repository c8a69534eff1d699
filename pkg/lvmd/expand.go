package lvmd

import (
	"context"
	"errors"
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

type expander struct{ *core }

// ExpandVolume implements lvmdv1.LVMDServer. LVM's commit is its only effect, and a retry finds
// it done.
func (s *Service) ExpandVolume(ctx context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	if r.GetId() == "" {
		return nil, apierror.InvalidField("id", "it is empty")
	}
	if r.GetRequiredBytes() < 1 {
		return nil, apierror.InvalidField("required_bytes", "%d is not at least 1", r.GetRequiredBytes())
	}
	if l := r.GetLimitBytes(); l < 0 || l != 0 && l < r.GetRequiredBytes() {
		return nil, apierror.InvalidField("limit_bytes", "%d is neither 0, for no limit, nor at least required_bytes, %d", l, r.GetRequiredBytes())
	}
	v, err := s.expander.expand(ctx, r)
	if err != nil {
		return nil, err
	}
	return &lvmdv1.ExpandVolumeResponse{Volume: v.Report()}, nil
}

func (s *expander) expand(ctx context.Context, r *lvmdv1.ExpandVolumeRequest) (*inventory.Volume, error) {
	e, mustExtend, err := s.begin(r)
	if err != nil {
		return nil, err
	}
	if mustExtend {
		err = s.extend(ctx, e)
		e.End(err)
	} else {
		select {
		case <-e.Done():
			err = e.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err == nil {
		err = s.growEncrypted(e.Volume)
	}
	if err != nil {
		// The scan after the failed command may show why LVM refused.
		if dependents := inventory.CheckDependents(e.Volume); dependents != nil {
			err = dependents
		}
		return nil, apierror.From("expanding volume "+r.GetId(), err)
	}
	return e.Volume, nil
}

// begin runs an expansion with an extension in the background; mustExtend asks the caller to
// run one without.
func (s *expander) begin(r *lvmdv1.ExpandVolumeRequest) (e *inventory.Expansion, mustExtend bool, err error) {
	release, err := s.admit()
	if err != nil {
		return nil, false, err
	}
	defer release()
	ctx, cancel := context.WithCancel(s.work)
	e, isNew, err := s.inventory.AdmitExpansion(r.GetId(), r.GetRequiredBytes(), r.GetLimitBytes(), cancel)
	if err != nil || !isNew || e.Extension == nil {
		cancel()
		return e, isNew, err
	}
	s.spawn(func() {
		defer cancel()
		s.end(e, s.extendZeroed(onBehalfOf(ctx, e.Volume), e))
	})
	return e, false, nil
}

func (s *expander) end(e *inventory.Expansion, err error) {
	left := e.End(err)
	if left == nil {
		return
	}
	if err := s.journal.PutVolume(*left); err != nil {
		// The extension's tag makes the next start do the same.
		s.log.Warn("an extension's tombstone is not in the journal", "volume", e.Volume.ID(), "extension", left.ID, "error", err)
	}
	s.groups.Of(e.Volume).Reclaim()
}

// extend lets LVM choose the extents, whatever they hold.
func (s *expander) extend(ctx context.Context, e *inventory.Expansion) error {
	s.crash("expand: admitted")
	v := e.Volume
	if err := volumegroup.CheckDependents(ctx, s.groups, v); err != nil {
		return err
	}
	return s.groups.Change(onBehalfOf(ctx, v), s.groups.Of(v), func(ctx context.Context) (inventory.Effect, error) {
		if err := s.checkGrowth(v); err != nil {
			return nil, err
		}
		on, err := e.PlanGrowth()
		if err != nil {
			return nil, err
		}
		return s.grow(ctx, e, on)
	})
}

func (s *expander) grow(ctx context.Context, e *inventory.Expansion, on []layout.Share) (inventory.Growth, error) {
	v := e.Volume
	return s.grown(e, s.lvm.Extend(volumegroup.ForClassOf(ctx, v), v.Group().Name(), v.ID(), e.Extents, on...))
}

// growAt fails if the group's sequence number is not seqno: another program may have used the
// zeroed extents. A later check would not do, as the volume's user sees the extents at once.
func (s *expander) growAt(ctx context.Context, e *inventory.Expansion, seqno uint64, on []layout.Share) (inventory.Growth, error) {
	v, group := e.Volume, e.Volume.Group().Name()
	err := s.lvm.ExtendAt(volumegroup.ForClassOf(ctx, v), seqno, group, v.ID(), e.Extents, on...)
	if errors.Is(err, lvm.ErrChanged) {
		err = apierror.OperationPending("another program changed volume group %q while volume %s was growing", group, v.ID())
	}
	return s.grown(e, err)
}

func (s *expander) grown(e *inventory.Expansion, err error) (inventory.Growth, error) {
	if err != nil {
		return inventory.Growth{}, err
	}
	segments, unmapped := s.lvm.Mapping(e.Volume.Group().Name(), e.Volume.ID())
	return inventory.Grown(e, segments, unmapped), nil
}

// A raw volume shows its user every byte. lvmd therefore first zeroes the new extents in the
// extension, a logical volume without other users. Then, in one slot, it removes the extension
// and adds exactly its extents to the volume: no extent is written once the user sees it, and
// the size changes once. After a crash the next scan removes the extension, which a tag marks,
// and the next request starts over.

func (s *expander) extendZeroed(ctx context.Context, e *inventory.Expansion) error {
	s.crash("expand: admitted")
	g := s.groups.Of(e.Volume)
	err, done := volumegroup.CheckDependents(ctx, s.groups, e.Volume), false
	if err == nil {
		done, err = s.allocate(ctx, g, e)
	}
	if err == nil && !done {
		s.crash("expand: extension made")
		if err = s.zeroExtension(ctx, e); err == nil {
			s.crash("expand: extension zeroed")
			err = s.giveExtension(ctx, g, e)
		}
		err = apierror.Begun(err)
	}
	if err != nil {
		return err
	}
	s.crash("expand: grown")
	if err := s.journal.Update(s.groups.Remember(g)); err != nil {
		s.log.Warn("what is known to be zero in a volume group will be forgotten at the next start", "group", g.Name(), "error", err)
	}
	return nil
}

// allocate gives the extents to the volume and returns done if all are known to be zero.
// Otherwise it creates the extension from them.
func (s *expander) allocate(ctx context.Context, g *volumegroup.Group, e *inventory.Expansion) (done bool, err error) {
	err = s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		if err := s.checkGrowth(e.Volume); err != nil {
			return nil, err
		}
		p, err := s.lvm.Placement(g.Name())
		if err != nil {
			return nil, fmt.Errorf("reading which extents are free: %w", err)
		}
		segments, err := s.lvm.Mapping(g.Name(), e.Volume.ID())
		if err != nil {
			return nil, err
		}
		on, extension, err := e.ChooseExtents(p, segments)
		if err != nil {
			return nil, err
		}
		if done = extension == nil; done {
			return s.growAt(ctx, e, p.Seqno, on)
		}
		if err := s.lvm.Create(volumegroup.ForClassOf(ctx, e.Volume), *extension); err != nil {
			return nil, err
		}
		segments, unmapped := s.lvm.Mapping(g.Name(), e.Extension.ID())
		return inventory.ExtensionMade(e, segments, unmapped), nil
	})
	return done, err
}

func (s *expander) zeroExtension(ctx context.Context, e *inventory.Expansion) error {
	h, err := s.groups.Open(ctx, e.Extension)
	if err != nil {
		return fmt.Errorf("the device of the new extents: %w", err)
	}
	notZeroed, _ := e.Extension.NotZeroed()
	err = s.zero(ctx, h, notZeroed, nil)
	if err = errors.Join(err, h.Close()); err != nil {
		return fmt.Errorf("zeroing the new extents: %w", err)
	}
	return nil
}

// giveExtension reads the mapping again, as an administrator may have moved the extents. It
// reads the sequence number first, so that growAt also detects changes before the mapping was
// read. Another program may then get the extents, and the next request starts over.
func (s *expander) giveExtension(ctx context.Context, g *volumegroup.Group, e *inventory.Expansion) error {
	x := e.Extension.ID()
	return s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		before, err := s.lvm.Metadata(g.Name())
		if err != nil {
			return nil, err
		}
		zeroed, err := s.lvm.Mapping(g.Name(), x)
		if err != nil {
			return nil, err
		}
		on := g.SharesOf(zeroed)
		if err := s.lvm.Remove(volumegroup.ForClassOf(ctx, e.Volume), g.Name(), []string{x}); err != nil {
			return nil, err
		}
		s.crash("expand: extension removed")
		grown, err := s.growAt(ctx, e, before.Seqno+1, on)
		if err != nil {
			return nil, err
		}
		return inventory.ExtensionGiven(grown, zeroed), nil
	})
}
