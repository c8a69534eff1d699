package volumegroup

import (
	"context"
	"errors"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

// ScanAtStart is Scan before the groups are loaded. Where LVM does not answer in time, as a disk of one
// group does not, or fails, as where it cannot read one of all the groups that it sees, each group is scanned by
// itself. Those for which it does the same then are left out of this scan and all that follow; from Load on
// they do not respond, and are looked for until they do.
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

// mayBeOfOne reports whether a scan of several groups may have failed because of one of them.
func mayBeOfOne(err error) bool {
	var failed *lvm.CommandError
	return errors.Is(err, lvm.ErrTimedOut) || errors.As(err, &failed) && failed.ExitCode > 0 && !errors.Is(err, lvm.ErrUnavailable)
}
