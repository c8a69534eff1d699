package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/filesystem"
)

const (
	checkTimeout = 2 * time.Hour
	// reformatTimeout bounds a format, whose duration does not depend on size.
	reformatTimeout = 10 * time.Minute
)

func useOf(v *lvmdv1.Volume) filesystem.Use {
	return filesystem.Use{Type: filesystem.Type(v.GetFsType()), DAX: v.GetDax(), Profile: filesystem.Profile(v.GetProfile())}
}

// makeMountable ensures that the expected file system needs no check and returns
// its state. It reformats only scratch file systems that were not unmounted
// cleanly.
func (s *stager) makeMountable(v *lvmdv1.Volume, device string) (filesystem.Info, error) {
	info, err := s.fileSystems.Probe(device)
	repaired, err := s.repair(v, device, info, err)
	if err == nil && repaired {
		info, err = s.fileSystems.Probe(device)
	}
	return info, err
}

func (s *stager) repair(v *lvmdv1.Volume, device string, info filesystem.Info, err error) (repaired bool, _ error) {
	use := useOf(v)
	half := use.Profile == filesystem.Scratch && errors.Is(err, filesystem.ErrUnformatted)
	switch {
	case half: // an earlier reformat was interrupted
	case errors.Is(err, filesystem.ErrUnformatted):
		return false, fmt.Errorf("volume %s was made with a file system, which is not there, and is not formatted again: %w", v.GetId(), err)
	case err != nil:
		return false, fmt.Errorf("volume %s: %w", v.GetId(), err)
	case info.Type != use.Type:
		return false, csierror.New(codes.FailedPrecondition,
			fmt.Errorf("volume %s carries %s: it was created with %s, and is not formatted again", v.GetId(), info.Type, use.Type))
	case foreign(v, info):
		return false, csierror.New(codes.FailedPrecondition,
			fmt.Errorf("volume %s carries an %s that is not its own, UUID %s instead of %s: it is neither mounted nor formatted; "+
				"if it is to be used, give it the UUID that the volume was made with", v.GetId(), info.Type, info.UUID, v.GetFsUuid()))
	case !info.NeedsCheck:
		return false, nil
	}
	// A mounted file system also looks in need of a check. Accept a mount of
	// ours from a previous run: only a check would do harm. Reject one in
	// another mount namespace: it may have failed or have other options.
	others, err := s.devices.layersOf(deviceOf(v))
	if err != nil {
		return false, err
	}
	if len(others) > 0 {
		s.log.Warn("not checked: the file system is mounted already", "volume", v.GetId(), "at", others[0])
		return false, nil
	}
	if err := s.devices.refuseHeld(v); err != nil {
		return false, err
	}
	if use.Profile == filesystem.Scratch {
		return true, s.reformat(v, device)
	}
	ctx, cancel := context.WithTimeout(s.background, checkTimeout)
	defer cancel()
	begin := time.Now()
	err = s.checker.check(ctx, v)
	s.metrics.checked(use.Type, err)
	if err != nil {
		return false, fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	s.log.Info("checked the file system after a crash", "volume", v.GetId(), "duration", time.Since(begin))
	return true, nil
}

// foreign reports whether the file system is not the one that lvmd made: it may
// hold someone else's data.
func foreign(v *lvmdv1.Volume, info filesystem.Info) bool {
	return v.GetFsUuid() != "" && info.UUID != "" && !strings.EqualFold(v.GetFsUuid(), info.UUID)
}

func formatOptions(v *lvmdv1.Volume) (filesystem.FormatOptions, error) {
	use := useOf(v)
	settings, err := filesystem.ParseSettings(use, v.GetFsSettings())
	return filesystem.FormatOptions{Type: use.Type, UUID: v.GetFsUuid(), DAX: use.DAX, Profile: use.Profile, Settings: settings}, err
}

// reformat discards the contents: after a crash they cannot be trusted, as the
// journal guarantees too little, and the Pod does not need them.
func (s *stager) reformat(v *lvmdv1.Volume, device string) error {
	options, err := formatOptions(v)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	ctx, cancel := context.WithTimeout(s.background, reformatTimeout)
	defer cancel()
	if err := s.fileSystems.Format(ctx, device, options); err != nil {
		return fmt.Errorf("volume %s: reformat its scratch file system: %w", v.GetId(), err)
	}
	s.log.Warn("reformatted a scratch file system, which is empty now: it was not unmounted cleanly", "volume", v.GetId(),
		"claim", v.GetOwner().GetClaimNamespace()+"/"+v.GetOwner().GetClaimName())
	return nil
}
