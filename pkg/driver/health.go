package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
)

// Reasons of volume health that the node plugin finds by itself; the others
// are lvmd's condition types.
const (
	// ReasonFileSystemReadOnly: errors made the kernel stop writing.
	ReasonFileSystemReadOnly = "FileSystemReadOnly"
	// ReasonFileSystemErrors: the kernel found errors in the file system, which
	// takes no more writes until it is checked when it is staged next.
	ReasonFileSystemErrors = "FileSystemErrors"
	// ReasonFileSystemWarnings: the kernel noticed errors, of input and output
	// above all, and goes on with the file system.
	ReasonFileSystemWarnings = "FileSystemWarnings"
	// ReasonFileSystemFailed: the file system answers with I/O errors.
	ReasonFileSystemFailed = "FileSystemFailed"
)

// inaccessible are lvmd's condition types of volumes that cannot be used at
// all; the others are usable still.
var inaccessible = []string{"MissingDevice", "Failed", "InvalidSnapshot", "Suspended", "Inactive", "VolumeGroupMissing", "PoolMissing", "PoolInactive", "PoolFailed"}

// NodeGetVolumeHealth tells what lvmd knows about the volume, and whether its
// file system still takes writes. An empty list is good news.
func (n *Node) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id := req.GetVolumeId()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	for field, path := range map[string]string{
		"volume_publish_path": req.GetVolumePublishPath(),
		"staging_target_path": req.GetStagingTargetPath(),
	} {
		if path == "" {
			continue
		}
		if err := n.checkPath(field, path); err != nil {
			return nil, err
		}
	}
	v, err := n.find(ctx, id)
	if err != nil {
		return nil, err
	}
	points, err := n.options.Mounts.Below(n.options.KubeletDir)
	if err != nil {
		return nil, err
	}
	entries, err := n.healthOf(v, points)
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: id, HealthStatuses: entries}}, nil
}

// healthOf tells all that is wrong with a volume, in the light of the layers
// below the kubelet's directory.
func (n *Node) healthOf(v *lvmdv1.Volume, points []mount.Point) ([]*csi.VolumeHealth_VolumeHealthEntry, error) {
	var entries []*csi.VolumeHealth_VolumeHealthEntry
	for _, c := range v.GetConditions() {
		status := csi.VolumeHealthErrorType_DEGRADED
		if slices.Contains(inaccessible, c.GetType()) {
			status = csi.VolumeHealthErrorType_INACCESSIBLE
		}
		entries = append(entries, &csi.VolumeHealth_VolumeHealthEntry{Status: status, Reason: c.GetType(), Message: c.GetMessage()})
	}
	entry, err := n.fileSystemHealth(v, points)
	if entry != nil {
		entries = append(entries, entry)
	}
	return entries, err
}

// fileSystemHealth tells the worst of what is wrong with a file system. It looks at
// the volume's layers, which share one file system:
// one that turned read-only by itself has layers that still say that they are
// writable.
func (n *Node) fileSystemHealth(v *lvmdv1.Volume, points []mount.Point) (*csi.VolumeHealth_VolumeHealthEntry, error) {
	v, open, err := n.opened(v)
	if err != nil || !open {
		return nil, err
	}
	i := slices.IndexFunc(points, func(p mount.Point) bool { return p.Device == deviceOf(v) && p.Root == "/" })
	if i < 0 {
		return nil, nil
	}
	p := points[i]
	if _, err := n.options.Mounts.At(p.Path); errors.Is(err, syscall.EIO) {
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: ReasonFileSystemFailed,
			Message: fmt.Sprintf("the file system at %s answers with I/O errors", p.Path),
		}, nil
	}
	found, err := n.options.Mounts.Errors(p.Device)
	if err != nil {
		return nil, err
	}
	warnings, err := n.options.Mounts.Warnings(p.Device)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(p.FSOptions, "shutdown"):
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: ReasonFileSystemFailed,
			Message: fmt.Sprintf("the kernel shut the file system at %s down after errors", p.Path),
		}, nil
	case found > 0:
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonFileSystemErrors,
			Message: fmt.Sprintf("the kernel found %d errors in the file system at %s", found, p.Path),
		}, nil
	case slices.Contains(p.Options, "rw") && (slices.Contains(p.FSOptions, "ro") || slices.Contains(p.FSOptions, "emergency_ro")):
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonFileSystemReadOnly,
			Message: fmt.Sprintf("the kernel made the file system at %s read-only after errors", p.Path),
		}, nil
	case warnings > 0:
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonFileSystemWarnings,
			Message: fmt.Sprintf("the kernel counted %d I/O errors or other warnings of the file system at %s, which works on: "+
				"the node's kernel log says which; data may be lost", warnings, p.Path),
		}, nil
	}
	return nil, nil
}
