package driver

import (
	"context"
	"fmt"
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// growSlack is by how much a file system may be smaller than its volume
// because of its own granularity. Volumes grow by extents, which are larger.
const growSlack = 1 << 20

// besideClones completes the mount options of a file system that clones of it,
// or what it was cloned from, may be mounted beside: they have one UUID, which
// xfs allows only with an option. ext4 does not mind. Another UUID would take a check of all
// of ext4, and for xfs a mount that replays the log, which lvmd never does.
func besideClones(t filesystem.Type, options []string) []string {
	if t != filesystem.XFS || slices.Contains(options, "nouuid") {
		return options
	}
	return append(options, "nouuid")
}

// growToVolume grows the file system of a volume that was made larger than its source.
// It is mounted at path; what is mounted read-only stays as it is.
func (s *stager) growToVolume(v *lvmdv1.Volume, device, path string, options []string) error {
	if v.GetSource() == nil || slices.Contains(options, "ro") {
		return nil
	}
	info, err := s.fileSystems.Probe(device)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	if info.SizeBytes+growSlack > v.GetSizeBytes() {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.background, growTimeout)
	defer cancel()
	if err := s.fileSystems.Grow(ctx, device, path, info.Type); err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	return nil
}
