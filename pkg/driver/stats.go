package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/driver/mount"
)

// NodeGetVolumeStats tells how full the file system at a path is, in bytes and
// inodes, or how large the raw block volume is that is published there. It
// asks the kernel only, once.
func (n *Node) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, err
	}
	path := req.GetVolumePath()
	at, err := n.shown("volume_path", path, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if at.Node {
		size, err := n.options.Mounts.NodeSize(path)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", req.GetVolumeId(), err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	u, err := n.options.Mounts.Usage(path)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", req.GetVolumeId(), err)
	}
	usage := []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Available: u.AvailableBytes, Used: u.UsedBytes}}
	if u.TotalInodes > 0 { // btrfs knows no limit, and no number
		usage = append(usage, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Available: u.FreeInodes, Used: u.UsedInodes})
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

// shown returns what is at a path where a volume is said to be staged or
// published. Anywhere that cannot be is answered as not found, as the CSI
// specification asks.
func (n *Node) shown(field, path, id string) (mount.State, error) {
	if path == "" {
		return mount.State{}, invalid(field, "a value is required")
	}
	notFound := &failure{codes.NotFound, fmt.Errorf("volume %s is neither staged nor published at %q", id, path)}
	if !strings.HasPrefix(path, n.options.KubeletDir+"/") || filepath.Clean(path) != path {
		return mount.State{}, notFound
	}
	if err := n.checkPath(field, path); err != nil {
		return mount.State{}, err
	}
	at, err := n.options.Mounts.At(path)
	if err != nil {
		return mount.State{}, fmt.Errorf("volume %s does not answer: %w", id, err)
	}
	if !at.Mounted {
		return mount.State{}, notFound
	}
	return at, nil
}
