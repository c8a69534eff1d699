package volumegroup

import (
	"context"
	"errors"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

// ScanAtStart is Scan before the groups are loaded. Where LVM does not answer in time, as a disk of one
// group does not, each group is scanned by itself. Those for which it does not answer then are left out of
// this scan and all that follow; from Load on they do not respond, and are looked for until they do.
func (s *Groups) ScanAtStart(ctx context.Context, names []string) ([]lvm.Group, error) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return s.byName[name].late != nil })
	found, err := s.Scan(ctx, names)
	if !errors.Is(err, lvm.ErrTimedOut) || ctx.Err() != nil {
		return found, err
	}
	s.Log.Warn("LVM does not answer; each volume group is looked for by itself", "groups", names, "error", err)
	found = nil
	for _, name := range names {
		one, err := s.Scan(ctx, []string{name})
		switch {
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, lvm.ErrTimedOut):
			s.byName[name].late = err
		case err != nil:
			return nil, err
		}
		found = append(found, one...)
	}
	return found, nil
}
