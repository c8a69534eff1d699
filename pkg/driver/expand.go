package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/quantity"
)

const growTimeout = time.Hour

// NodeExpandVolume grows the mounted file system to the size that its volume
// already has. For a raw block volume it only resizes the LUKS mapping, if any,
// which needs no key.
func (n *Node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if req.GetVolumePath() == "" {
		return nil, csierror.Invalid("volume_path", "a value is required")
	}
	if req.GetVolumeCapability() != nil {
		if _, err := checkCapability(req.GetVolumeCapability()); err != nil {
			return nil, err
		}
	}
	release, err := n.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := n.encryption.inUse(ctx, id)
	if err != nil {
		return nil, err
	}
	at, err := n.devices.shown("volume_path", req.GetVolumePath(), id)
	if err != nil {
		return nil, err
	}
	if at.Device != deviceOf(v) {
		return nil, csierror.New(codes.NotFound, fmt.Errorf("%s shows device %v, volume %s is %v", req.GetVolumePath(), at.Device, id, deviceOf(v)))
	}
	if required := req.GetCapacityRange().GetRequiredBytes(); required > v.GetSizeBytes() {
		return nil, csierror.New(codes.OutOfRange,
			fmt.Errorf("capacity_range.required_bytes: %s is not allowed: it is more than the %s that volume %s has", quantity.Bytes(required), quantity.Bytes(v.GetSizeBytes()), id))
	}
	if isLUKS(v) {
		if err := n.encryption.resizeLUKS(v); err != nil {
			return nil, err
		}
	}
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		if err := n.grower.grow(v, req); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.GetSizeBytes()}, nil
}

type grower struct {
	background  context.Context
	fileSystems FileSystems
	devices     *devices
}

func (g *grower) grow(v *lvmdv1.Volume, req *csi.NodeExpandVolumeRequest) error {
	device, err := g.devices.node(v)
	if err != nil {
		return err
	}
	path, err := g.writable(v, req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(g.background, growTimeout)
	defer cancel()
	if err := g.fileSystems.Grow(ctx, device, path, filesystem.Type(v.GetFsType())); err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	return nil
}

// writable returns a path at which the file system is mounted read-write: the
// staging path may be even if the target is not.
func (g *grower) writable(v *lvmdv1.Volume, req *csi.NodeExpandVolumeRequest) (string, error) {
	for field, path := range map[string]string{"volume_path": req.GetVolumePath(), "staging_target_path": req.GetStagingTargetPath()} {
		if path == "" {
			continue
		}
		at, err := g.devices.shown(field, path, v.GetId())
		if err == nil && !at.ReadOnly && !at.Node && at.Device == deviceOf(v) {
			return path, nil
		}
	}
	return "", csierror.New(codes.FailedPrecondition,
		fmt.Errorf("the file system of volume %s is mounted read-only: it can be grown only while it is writable", v.GetId()))
}
