package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// A volume with names.EncryptionLUKS is opened when it is staged, with the key
// from the claim's node-stage Secret. Its first stage creates it. After that
// its mapping is the device to mount, bind, check and grow.

const (
	// unlockTimeout bounds creating and opening an encrypted volume, including
	// the wait for others.
	unlockTimeout = 10 * time.Minute
	lockTimeout   = time.Minute
)

func isLUKS(v *lvmdv1.Volume) bool { return v.GetEncryption() == names.EncryptionLUKS }

// keyOf returns the volume's key from a request's secrets, or nil if the volume
// needs none.
func keyOf(v *lvmdv1.Volume, secrets map[string]string) ([]byte, error) {
	if !isLUKS(v) {
		return nil, nil
	}
	field := "secrets[" + names.SecretKey + "]"
	key := []byte(secrets[names.SecretKey])
	switch {
	case len(key) == 0:
		return nil, csierror.Invalid(field, "a value is required: volume %s is encrypted, its key is the entry %q of the Secret that its StorageClass names by %s",
			v.GetId(), names.SecretKey, names.ParamStageSecretName)
	case len(key) > luks.MaxKey:
		return nil, csierror.Invalid(field, "the key has %d bytes: allowed are 1 to %d", len(key), luks.MaxKey)
	}
	return key, nil
}

type encryption struct {
	background  context.Context
	luks        luks.Interface
	mounts      mount.Interface
	fileSystems FileSystems
	volumes     lvmdclient.Client
	devices     *devices
	log         *slog.Logger
}

// opened returns the volume as its users see it: for a LUKS volume, with the
// mapping as its device. It returns false if the volume has no complete
// mapping.
func (e *encryption) opened(v *lvmdv1.Volume) (*lvmdv1.Volume, bool, error) {
	if !isLUKS(v) {
		return v, true, nil
	}
	m, ok, err := e.luks.Mapping(v.GetId())
	if err != nil || !ok || !m.Whole {
		return v, false, err
	}
	plain := proto.CloneOf(v)
	plain.DevicePath, plain.DeviceMajor, plain.DeviceMinor = luks.Path(v.GetId()), m.Major, m.Minor
	return plain, true, nil
}

func (e *encryption) inUse(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	v, err := e.volumes.Ready(ctx, id)
	if err != nil {
		return nil, err
	}
	plain, ok, err := e.opened(v)
	if err == nil && !ok {
		err = csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is encrypted and is not staged: staging opens it", id))
	}
	return plain, err
}

// unlock opens a LUKS volume, creating it if no Pod ever had it, and returns it
// as its users see it. It does not test the key of a volume mounted at its
// staging path. On failure the mapping may exist, and the caller must call
// closeUnused.
func (e *encryption) unlock(v *lvmdv1.Volume, key []byte, staging string) (*lvmdv1.Volume, error) {
	plain, open, err := e.opened(v)
	if err != nil {
		return nil, err
	}
	if open {
		if at, err := e.mounts.At(staging); err == nil && at.Mounted && !at.Node && at.Device == deviceOf(plain) {
			return plain, nil
		}
	}
	below, err := e.devices.node(v)
	if err != nil {
		return nil, err
	}
	state, err := e.luks.Inspect(below, v.GetId())
	switch {
	case errors.Is(err, luks.ErrForeign), errors.Is(err, luks.ErrDamaged):
		return nil, csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is neither opened nor reformatted: %w", v.GetId(), err))
	case err != nil:
		return nil, fmt.Errorf("volume %s: %w", v.GetId(), err)
	case state != luks.Made && v.GetEncrypted():
		return nil, csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is not reformatted: its device %s has lost the header of the encrypted volume (it is %s), and "+
			"without it the rest cannot be read: restore it from a backup (cryptsetup luksHeaderRestore); delete the claim only if its data is not needed", v.GetId(), v.GetDevicePath(), state))
	}
	ctx, cancel := context.WithTimeout(e.background, unlockTimeout)
	defer cancel()
	switch {
	case state == luks.Made && open:
		err = e.luks.Test(ctx, below, v.GetId(), key)
	case state == luks.Made:
		plain, err = e.reopenLUKS(ctx, v, below, key)
	default:
		plain, err = e.makeLUKS(ctx, v, below, key)
	}
	if err != nil {
		return nil, err
	}
	return plain, e.noteEncrypted(ctx, v, below)
}

// noteEncrypted verifies how an opened volume is encrypted and has lvmd record
// it, before a Pod gets the volume.
func (e *encryption) noteEncrypted(ctx context.Context, v *lvmdv1.Volume, below string) error {
	err := e.luks.Verify(below, v.GetId())
	if errors.Is(err, luks.ErrForeign) {
		return csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is not used: %w", v.GetId(), err))
	}
	if err != nil || v.GetEncrypted() {
		return err
	}
	err = e.volumes.NoteLUKS(ctx, v.GetId())
	if csierror.CodeOf(err) == codes.Unimplemented {
		// During an upgrade lvmd may be older than the node plugin.
		return nil
	}
	return err
}

func (e *encryption) reopenLUKS(ctx context.Context, v *lvmdv1.Volume, below string, key []byte) (*lvmdv1.Volume, error) {
	// An incomplete mapping is unusable.
	if err := e.closeLUKS(v.GetId()); err != nil {
		return nil, err
	}
	return e.openLUKS(ctx, v, below, key)
}

func (e *encryption) openLUKS(ctx context.Context, v *lvmdv1.Volume, below string, key []byte) (*lvmdv1.Volume, error) {
	if err := e.luks.Open(ctx, below, v.GetId(), key, v.GetEncryptionDiscards()); err != nil {
		return nil, err
	}
	plain, open, err := e.opened(v)
	if err == nil && !open {
		err = fmt.Errorf("volume %s was opened, and its mapping is gone", v.GetId())
	}
	return plain, err
}

// makeLUKS creates a volume that no Pod ever had. It marks it complete last.
func (e *encryption) makeLUKS(ctx context.Context, v *lvmdv1.Volume, below string, key []byte) (*lvmdv1.Volume, error) {
	begin := time.Now()
	// A mapping left by an earlier attempt uses the header that Format
	// overwrites.
	if err := e.closeLUKS(v.GetId()); err != nil {
		return nil, err
	}
	if err := e.luks.Format(ctx, below, v.GetId(), key); err != nil {
		return nil, err
	}
	plain, err := e.openLUKS(ctx, v, below, key)
	if err != nil {
		return nil, err
	}
	device, err := e.devices.node(plain)
	if err != nil {
		return nil, err
	}
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
		err = e.luks.Clear(device)
	} else {
		var options filesystem.FormatOptions
		if options, err = formatOptions(v); err == nil {
			err = e.fileSystems.Format(ctx, device, options)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	if err := e.luks.Finish(ctx, below, v.GetId()); err != nil {
		return nil, err
	}
	e.log.Info("made an encrypted volume", "volume", v.GetId(), "duration", time.Since(begin))
	return plain, nil
}

// closeLUKS closes the volume's mapping, unless a layer shows it. It needs
// neither lvmd nor the device. It looks for layers itself because a device node
// does not keep the mapping open in the kernel.
func (e *encryption) closeLUKS(id string) error {
	m, there, err := e.luks.Mapping(id)
	if err != nil || !there {
		return err
	}
	users, err := e.devices.layersOf(mount.Device{Major: m.Major, Minor: m.Minor})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("volume %s stays open: %w at %s", id, luks.ErrInUse, users[0])
	}
	ctx, cancel := context.WithTimeout(e.background, lockTimeout)
	defer cancel()
	return e.devices.withHolders(e.luks.Close(ctx, id), mount.Device{Major: m.Major, Minor: m.Minor})
}

// closeUnused closes the mapping of a volume that failed to stage, unless it is
// in use. A call to unstage may never follow.
func (e *encryption) closeUnused(v *lvmdv1.Volume) error {
	if err := e.closeLUKS(v.GetId()); !errors.Is(err, luks.ErrInUse) {
		return err
	}
	return nil
}

func (e *encryption) resizeLUKS(v *lvmdv1.Volume) error {
	ctx, cancel := context.WithTimeout(e.background, growTimeout)
	defer cancel()
	return e.luks.Resize(ctx, v.GetId())
}
