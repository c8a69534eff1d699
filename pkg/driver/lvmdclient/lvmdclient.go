// Package lvmdclient asks lvmd about volumes, on behalf of the node plugin: each question has
// a deadline, and each error the code that a kubelet is to get.
package lvmdclient

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
)

// Timeout bounds a question to lvmd. It answers from memory; the rest is for a restart of
// it.
const Timeout = 5 * time.Second

// Client asks lvmd. It is safe for concurrent use.
type Client struct{ lvmdv1.LVMDClient }

// Volume returns the volume with an id. NotFound: there is none.
func (c Client) Volume(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	v, err := c.get(ctx, &lvmdv1.GetVolumeRequest{Id: id})
	if err == nil && v.GetId() != id {
		err = fmt.Errorf("lvmd answered with volume %q instead of %q", v.GetId(), id)
	}
	return v, err
}

// Ready returns the volume with an id that is to be staged, published or grown.
// Unavailable: it is not ready.
func (c Client) Ready(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	v, err := c.Volume(ctx, id)
	if err == nil && v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		err = csierror.New(codes.Unavailable, fmt.Errorf("volume %s is still being created", id))
	}
	return v, err
}

// Keep has lvmd note, before a Pod gets a volume, that its PersistentVolume exists: the kubelet
// has it.
func (c Client) Keep(ctx context.Context, v *lvmdv1.Volume) error {
	if !v.GetProvisional() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	_, err := c.KeepVolume(ctx, &lvmdv1.KeepVolumeRequest{Id: v.GetId()})
	return failed(err)
}

// NoteFound has lvmd note what is wrong with a volume.
func (c Client) NoteFound(ctx context.Context, id string, found []*lvmdv1.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	_, err := c.NoteHealth(ctx, &lvmdv1.NoteHealthRequest{Id: id, Found: found})
	return failed(err)
}

// NoteLUKS has lvmd note that a volume is encrypted, which waits for the volume group. The
// caller bounds that.
func (c Client) NoteLUKS(ctx context.Context, id string) error {
	_, err := c.NoteEncrypted(ctx, &lvmdv1.NoteEncryptedRequest{Id: id})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("lvmd did not note that the volume is encrypted: %w", ctx.Err())
	}
	return failed(err)
}

// Named returns the volume with a name; nil when there is none.
func (c Client) Named(ctx context.Context, name string) (*lvmdv1.Volume, error) {
	v, err := c.get(ctx, &lvmdv1.GetVolumeRequest{Name: name})
	if csierror.CodeOf(err) == codes.NotFound {
		return nil, nil
	}
	return v, err
}

func (c Client) get(ctx context.Context, req *lvmdv1.GetVolumeRequest) (*lvmdv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	answer, err := c.GetVolume(ctx, req, grpc.WaitForReady(true))
	return answer.GetVolume(), failed(err)
}

// All returns all volumes, whatever their state.
func (c Client) All(ctx context.Context) ([]*lvmdv1.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var volumes []*lvmdv1.Volume
	for token := ""; ; {
		page, err := c.ListVolumes(ctx, &lvmdv1.ListVolumesRequest{PageToken: token, PageSize: 500}, grpc.WaitForReady(true))
		if err != nil {
			return nil, failed(err)
		}
		volumes = append(volumes, page.GetVolumes()...)
		if token = page.GetNextPageToken(); token == "" {
			return volumes, nil
		}
	}
}

// AllReady returns all volumes that are ready.
func (c Client) AllReady(ctx context.Context) ([]*lvmdv1.Volume, error) {
	volumes, err := c.All(ctx)
	return slices.DeleteFunc(volumes, func(v *lvmdv1.Volume) bool { return v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY }), err
}

// Classes returns the device classes by name.
func (c Client) Classes(ctx context.Context) ([]*lvmdv1.DeviceClass, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	answer, err := c.ListClasses(ctx, &lvmdv1.ListClassesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, failed(err)
	}
	classes := answer.GetClasses()
	slices.SortFunc(classes, func(a, b *lvmdv1.DeviceClass) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return classes, nil
}

// failed gives an error of lvmd its code. The two services use codes alike; an lvmd that does
// not answer is Unavailable.
func failed(err error) error {
	switch code := status.Code(err); code {
	case codes.OK:
		return nil
	case codes.DeadlineExceeded:
		return csierror.New(codes.Unavailable, fmt.Errorf("lvmd did not answer within %v; the log of the container lvmd says why", Timeout))
	default:
		return csierror.New(code, fmt.Errorf("lvmd: %s", status.Convert(err).Message()))
	}
}
