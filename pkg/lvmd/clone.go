package lvmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// makeFromSource is make for what is made of another volume. On failure nothing of
// it is left, or a tombstone.
func (s *creator) makeFromSource(ctx context.Context, v *inventory.Volume) error {
	from := v.Source()
	if !from.Snapshot {
		return s.makeCopy(ctx, v)
	}
	if err := s.journal.PutVolume(v.Record()); err != nil {
		v.DropCreation()
		return err
	}
	s.crash("clone: intent written")
	err := s.groups.Change(ctx, s.groups.Of(v), func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Snapshotted(v), s.lvm.Snapshot(volumegroup.ForClassOf(ctx, v), from.SnapshotOptions())
	})
	if errors.Is(err, lvm.ErrNotFound) {
		err = &sourceVanishedError{from.Volume.ID(), err}
	}
	return s.made(ctx, v, err)
}

// sourceVanishedError is that of a source that vanished while something was made of it.
type sourceVanishedError struct {
	id    string
	cause error
}

func (f *sourceVanishedError) Error() string {
	return fmt.Sprintf("%s was removed by another program: %v", f.id, f.cause)
}
func (f *sourceVanishedError) Unwrap() error { return f.cause }

// fillFrom brings a volume that LVM has made to what its source holds.
func (s *creator) fillFrom(ctx context.Context, v *inventory.Volume) error {
	if v.Ident().Snapshot {
		return ctx.Err()
	}
	var known *lvm.Device
	device, err := s.groups.Device(v)
	if err == nil {
		known = &device
	}
	from := v.ContinueFrom(known)
	switch {
	case from.Snapshot:
		return s.enlarge(ctx, v, from, err)
	case err == nil:
		return s.copyFrom(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	return ctx.Err()
}

// enlarge gives a volume that was made by a snapshot the rest of its size,
// unless failed says that something went wrong before.
func (s *creator) enlarge(ctx context.Context, v *inventory.Volume, from *inventory.Source, failed error) error {
	defer from.AbandonEnlargement()
	extents, err := from.Enlargement()
	if err := errors.Join(failed, err, ctx.Err()); err != nil || extents == 0 {
		return err
	}
	g := s.groups.Of(v)
	err = s.groups.Change(ctx, g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Enlarged(v), s.lvm.Extend(volumegroup.ForClassOf(ctx, v), g.Name(), v.ID(), extents)
	})
	s.crash("clone: enlarged")
	return err
}
