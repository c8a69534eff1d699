package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// NodeGetVolumeStats returns usage in bytes and inodes of a file system, or the
// size of a published raw block volume. It asks only the kernel.
func (n *Node) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	path := req.GetVolumePath()
	at, err := n.devices.shown("volume_path", path, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if at.Node {
		size, err := n.devices.mounts.NodeSize(path)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", req.GetVolumeId(), err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	u, err := n.devices.mounts.Usage(path)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", req.GetVolumeId(), err)
	}
	usage := []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Available: u.AvailableBytes, Used: u.UsedBytes}}
	if u.TotalInodes > 0 { // btrfs has neither limit nor count
		usage = append(usage, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Available: u.FreeInodes, Used: u.UsedInodes})
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}
