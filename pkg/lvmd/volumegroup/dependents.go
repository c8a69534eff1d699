package volumegroup

import (
	"context"
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// CheckDependents is an error when another logical volume depends on a volume at this moment: the
// kernel says so at the cost of a system call. Then the group is scanned, for the dependent's name.
// Of a volume that has no device, what the last scan found is all that is known. The caller must
// not have the group's slot.
func CheckDependents(ctx context.Context, s *Groups, v *inventory.Volume) error {
	g := s.Of(v)
	has, err := s.LVM.HasDependents(g.Name(), v.ID())
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		return inventory.CheckDependents(v)
	case err != nil:
		return fmt.Errorf("asking what depends on volume %s: %w", v.ID(), err)
	case !has:
		return nil
	}
	done, err := s.Acquire(ctx, g)
	if err != nil {
		return err
	}
	defer done()
	if err := s.Rescan(g); err != nil {
		return err
	}
	if err := inventory.CheckDependents(v); err != nil {
		return err
	}
	return fmt.Errorf("volume %s: %w", v.ID(), lvm.ErrHasDependents)
}
