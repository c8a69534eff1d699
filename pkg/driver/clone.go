package driver

import (
	"context"
	"fmt"
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// growSlack is the number of bytes by which a file system's granularity may
// make it smaller than its volume. Volumes grow by extents, which are larger.
const growSlack = 1 << 20

// besideClones adds the xfs option nouuid: a clone has the UUID of its source,
// and xfs mounts both only with it. ext4 accepts duplicates. Changing the UUID
// instead would cost a check of the whole file system with ext4, and with xfs a
// mount that replays the log, which lvmd never does.
func besideClones(t filesystem.Type, options []string) []string {
	if t != filesystem.XFS || slices.Contains(options, "nouuid") {
		return options
	}
	return append(options, "nouuid")
}

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
