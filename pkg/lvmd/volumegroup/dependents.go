package volumegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// CheckDependents fails if another logical volume depends on v now. It asks the kernel, with a
// system call, and on a positive answer scans the group for the dependent's name. For an inactive
// volume it relies on the last scan. The kernel does not see a leg split off a mirror, which LVM
// removes with the volume: for RAID it also reads whether the group changed since the last scan.
// The caller must not have the group's slot.
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

// changed reports whether the sequence number on the disks is new.
func (s *Groups) changed(g *Group) bool {
	now, err := s.LVM.Metadata(g.Name())
	return err == nil && now.Seqno != g.Known().Seqno
}

// CheckLegs is CheckDependents for a caller that has the group's slot and removes the volumes next:
// LVM itself finds all other dependents.
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
