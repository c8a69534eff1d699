package volumegroup

import (
	"context"
	"errors"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

// ScanAtStart is Scan before Load. If LVM times out, as when a disk does not answer, or fails, as
// when it cannot read one of the groups, it scans each group alone. Groups that fail then are left
// out of this scan and later ones; Load marks them unresponsive, to be probed.
func (s *Groups) ScanAtStart(ctx context.Context, names []string) ([]lvm.Group, error) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return s.byName[name].late != nil })
	found, err := s.Scan(ctx, names)
	if !mayBeOfOne(err) || ctx.Err() != nil {
		return found, err
	}
	s.Log.Warn("LVM does not answer, or fails; each volume group is looked for by itself", "groups", names, "error", err)
	found = nil
	for _, name := range names {
		one, err := s.Scan(ctx, []string{name})
		switch {
		case ctx.Err() != nil:
			return nil, err
		case mayBeOfOne(err):
			s.byName[name].late = err
		case err != nil:
			return nil, err
		}
		found = append(found, one...)
	}
	return found, nil
}

// mayBeOfOne reports whether one group may have failed a scan of several.
func mayBeOfOne(err error) bool {
	var failed *lvm.CommandError
	return errors.Is(err, lvm.ErrTimedOut) || errors.As(err, &failed) && failed.ExitCode > 0 && !errors.Is(err, lvm.ErrUnavailable)
}
