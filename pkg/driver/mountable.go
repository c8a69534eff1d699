package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

const (
	// checkTimeout bounds the repair of a file system, however large.
	checkTimeout = 2 * time.Hour
	// remakeTimeout bounds the making of one, which does not depend on its size.
	remakeTimeout = 10 * time.Minute
)

// useOf is what the volume's file system was made for.
func useOf(v *lvmdv1.Volume) filesystem.Use {
	return filesystem.Use{Type: filesystem.Type(v.GetFsType()), DAX: v.GetDax(), Profile: filesystem.Profile(v.GetProfile())}
}

// makeMountable makes sure that the expected file system is on the device and
// has no need of a repair. Nothing is ever formatted again, but for scratch
// file systems that were not taken off cleanly.
func (n *Node) makeMountable(v *lvmdv1.Volume, device string) error {
	use := useOf(v)
	info, err := n.options.FileSystems.Probe(device)
	half := use.Profile == filesystem.Scratch && errors.Is(err, filesystem.ErrUnformatted)
	switch {
	case half: // the making anew was interrupted
	case errors.Is(err, filesystem.ErrUnformatted):
		return fmt.Errorf("volume %s was made with a file system, which is not there, and is not formatted again: %w", v.GetId(), err)
	case err != nil:
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	case info.Type != use.Type:
		return &failure{codes.FailedPrecondition,
			fmt.Errorf("volume %s carries %s: it was created with %s, and is not formatted again", v.GetId(), info.Type, use.Type)}
	case foreign(v, info):
		return &failure{codes.FailedPrecondition,
			fmt.Errorf("volume %s carries an %s that is not its own, UUID %s instead of %s: it is neither mounted nor formatted; "+
				"if it is to be used, give it the UUID that the volume was made with", v.GetId(), info.Type, info.UUID, v.GetFsUuid())}
	case !info.NeedsCheck:
		return nil
	}
	// A mounted file system looks as if it needed a check. A layer of ours that an
	// earlier life left behind does no harm, a check would. One in another mount
	// namespace is refused: it may have failed, or have other options.
	others, err := n.layersOf(deviceOf(v))
	if err != nil {
		return err
	}
	if len(others) > 0 {
		n.options.Log.Warn("not checked: the file system is mounted already", "volume", v.GetId(), "at", others[0])
		return nil
	}
	if err := n.refuseHeld(v); err != nil {
		return err
	}
	if use.Profile == filesystem.Scratch {
		return n.remake(v, device)
	}
	ctx, cancel := context.WithTimeout(n.life, checkTimeout)
	defer cancel()
	begin := time.Now()
	err = n.checker.check(ctx, device, use.Type)
	n.options.Metrics.checked(use.Type, err)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	n.options.Log.Info("checked the file system after an unclean stop", "volume", v.GetId(), "took", time.Since(begin))
	return nil
}

// foreign tells whether a file system is another one than lvmd put on the
// volume: what it holds may be somebody else's.
func foreign(v *lvmdv1.Volume, info filesystem.Info) bool {
	return v.GetFsUuid() != "" && info.UUID != "" && !strings.EqualFold(v.GetFsUuid(), info.UUID)
}

// formatOptions are those that the volume's file system is to be made with.
func formatOptions(v *lvmdv1.Volume) (filesystem.FormatOptions, error) {
	use := useOf(v)
	settings, err := filesystem.ParseSettings(use, v.GetFsSettings())
	return filesystem.FormatOptions{Type: use.Type, UUID: v.GetFsUuid(), DAX: use.DAX, Profile: use.Profile, Settings: settings}, err
}

// remake makes a scratch file system anew. Without a journal, what it holds
// cannot be trusted; and whoever asked for it does not miss it.
func (n *Node) remake(v *lvmdv1.Volume, device string) error {
	options, err := formatOptions(v)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	ctx, cancel := context.WithTimeout(n.life, remakeTimeout)
	defer cancel()
	err = n.options.FileSystems.Format(ctx, device, options)
	n.options.Metrics.remade(options.Type, err)
	if err != nil {
		return fmt.Errorf("volume %s: make its scratch file system anew: %w", v.GetId(), err)
	}
	n.options.Log.Warn("made a scratch file system anew, empty: it was not taken off cleanly", "volume", v.GetId(),
		"claim", v.GetOwner().GetClaimNamespace()+"/"+v.GetOwner().GetClaimName())
	return nil
}
