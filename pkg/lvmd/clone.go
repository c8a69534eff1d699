package lvmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

type sourceVanishedError struct {
	id    string
	cause error
}

func (f *sourceVanishedError) Error() string {
	return fmt.Sprintf("%s was removed by another program: %v", f.id, f.cause)
}
func (f *sourceVanishedError) Unwrap() error { return f.cause }

func (s *creator) fillFrom(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	if v.Ident().Snapshot {
		return ctx.Err()
	}
	device, err := s.groups.Device(v)
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	v.SetDevice(device)
	if from.Snapshot {
		return s.enlarge(ctx, v)
	}
	return s.copyFrom(ctx, v, from)
}

func (s *creator) enlarge(ctx context.Context, v *inventory.Volume) error {
	extents, err := v.Enlargement()
	if err := errors.Join(err, ctx.Err()); err != nil || extents == 0 {
		return err
	}
	g := s.groups.Of(v)
	err = s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Enlarged(v), s.lvm.Extend(volumegroup.ForClassOf(ctx, v), g.Name(), v.ID(), extents)
	})
	s.crash("clone: enlarged")
	return err
}
