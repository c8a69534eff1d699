package volumegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// CheckDependents is an error when another logical volume depends on a volume at this moment: the
// kernel says so at the cost of a system call. Then the group is scanned, for the dependent's name.
// Of a volume that has no device, what the last scan found is all that is known. Of a leg that was split
// off a mirror the kernel says nothing, and LVM removes it with the volume: where there are legs, the disks are
// asked whether the group changed since the last scan. The caller must not have the group's slot.
func CheckDependents(ctx context.Context, s *Groups, v *inventory.Volume) error {
	g := s.Of(v)
	has, err := s.LVM.HasDependents(g.Name(), v.ID())
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		return inventory.CheckDependents(v)
	case err != nil:
		return fmt.Errorf("asking what depends on volume %s: %w", v.ID(), err)
	case !has && !hasLegs(v):
		return nil
	case !has && !s.changed(g):
		return inventory.CheckDependents(v)
	}
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return err
	}
	defer done()
	if err := s.Rescan(g); err != nil {
		return err
	}
	if err := inventory.CheckDependents(v); err != nil || !has {
		return err
	}
	return fmt.Errorf("volume %s: %w", v.ID(), lvm.ErrHasDependents)
}

func hasLegs(v *inventory.Volume) bool {
	_, legs := inventory.LiesIn(v)
	return legs
}

// changed reports whether the group's metadata on the disks is another than is known.
func (s *Groups) changed(g *Group) bool {
	now, err := s.LVM.Metadata(g.Name())
	return err == nil && now.Seqno != g.Known().Seqno
}

// CheckLegs is CheckDependents for volumes that are removed next, by a caller that has the group's slot: what
// else depends on them LVM finds.
func (s *Groups) CheckLegs(g *Group, volumes []*inventory.Volume) error {
	if !slices.ContainsFunc(volumes, hasLegs) || !s.changed(g) {
		return nil
	}
	if err := s.Rescan(g); err != nil {
		return err
	}
	for _, v := range volumes {
		if err := inventory.CheckDependents(v); err != nil {
			return err
		}
	}
	return nil
}
