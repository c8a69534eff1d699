package driver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
)

// lookupTimeout bounds a question to lvmd. It answers from memory; the rest is
// for a restart of it.
const lookupTimeout = 5 * time.Second

// lookup asks lvmd for a volume.
func (n *Node) lookup(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	answer, err := n.options.LVMD.GetVolume(ctx, &lvmdv1.GetVolumeRequest{Id: id}, grpc.WaitForReady(true))
	switch {
	case status.Code(err) == codes.DeadlineExceeded:
		return nil, &failure{codes.Unavailable, fmt.Errorf("lvmd did not answer within %v: %w", lookupTimeout, err)}
	case err != nil:
		// The two services use codes alike.
		return nil, &failure{status.Code(err), fmt.Errorf("lvmd: %s", status.Convert(err).Message())}
	case answer.GetVolume().GetId() != id:
		return nil, fmt.Errorf("lvmd answered with volume %q instead of %q", answer.GetVolume().GetId(), id)
	}
	return answer.GetVolume(), nil
}

// usable looks a volume up that is to be staged, published or grown, as lvmd has
// it: inUse tells what its users see.
func (n *Node) usable(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	v, err := n.lookup(ctx, id)
	if err == nil && v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		err = &failure{codes.Unavailable, fmt.Errorf("volume %s is still being created", id)}
	}
	return v, err
}

func deviceOf(v *lvmdv1.Volume) mount.Device {
	return mount.Device{Major: v.GetDeviceMajor(), Minor: v.GetDeviceMinor()}
}

// deviceNode returns a path to a device node that stands for the volume's
// device. The path that lvmd gives can be stale, when whoever makes the nodes
// lags behind; the kernel's own node of the same number is as good then. The
// number can be, too, where somebody else took the volume's device away and made
// it again: the kernel is asked whose it is.
func (n *Node) deviceNode(v *lvmdv1.Volume) (string, error) {
	want := deviceOf(v)
	if err := n.checkDevice(v, want); err != nil {
		return "", err
	}
	found, err := n.options.Mounts.Node(v.GetDevicePath())
	if err == nil && found == want {
		return v.GetDevicePath(), nil
	}
	kernels := fmt.Sprintf("/dev/dm-%d", want.Minor)
	if again, kernelsErr := n.options.Mounts.Node(kernels); kernelsErr == nil && again == want {
		return kernels, nil
	}
	if err == nil {
		err = fmt.Errorf("%s stands for device %v", v.GetDevicePath(), found)
	}
	return "", &failure{codes.Unavailable, fmt.Errorf("no device node for volume %s, device %v: %w", v.GetId(), want, err)}
}

// checkDevice refuses a device that the kernel does not know as the volume's. It
// cannot become another's while it is in use.
func (n *Node) checkDevice(v *lvmdv1.Volume, device mount.Device) error {
	name, uuid, err := n.options.Mounts.Mapped(device)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	if volumeOf(name, uuid) == v.GetId() && strings.HasPrefix(uuid, uuidPrefix(v)) {
		return nil
	}
	is := "no such device"
	if name != "" {
		is = fmt.Sprintf("%q", name)
	}
	return &failure{codes.Unavailable,
		fmt.Errorf("device %v is not volume %s any more, the kernel has %s there: lvmd will notice", device, v.GetId(), is)}
}

// uuidPrefix is how device-mapper's UUID of the volume's device begins. Encrypted
// volumes have two devices.
func uuidPrefix(v *lvmdv1.Volume) string {
	switch {
	case v.GetDevicePath() == luks.Path(v.GetId()):
		return luks.UUIDPrefix
	case v.GetEncryption() == names.EncryptionEphemeral:
		return sealedUUID
	}
	// LVM writes the group's UUID without hyphens, and the volume's behind it.
	return volumeUUID + strings.ReplaceAll(v.GetVgUuid(), "-", "")
}
