package driver

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
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
// lags behind; the kernel's own node of the same number is as good then.
func (n *Node) deviceNode(v *lvmdv1.Volume) (string, error) {
	want := deviceOf(v)
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
