package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	mountutils "k8s.io/mount-utils"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
)

// Reasons of volume health that the node plugin detects; all others are lvmd's
// condition types.
const (
	// ReasonFileSystemErrors: the kernel found errors, or stopped writing after them. The
	// file system takes no more writes until the next stage checks it.
	ReasonFileSystemErrors = conditions.FileSystemErrors
	// ReasonFileSystemWarnings: the kernel counted warnings, mostly I/O errors,
	// and goes on with the file system.
	ReasonFileSystemWarnings = conditions.FileSystemWarnings
	// ReasonFileSystemFailed: the file system returns I/O errors.
	ReasonFileSystemFailed = conditions.FileSystemFailed
	// ReasonMountedElsewhere: no Pod uses the volume, but the kernel has it
	// mounted, so it can be neither staged nor deleted.
	ReasonMountedElsewhere = conditions.MountedElsewhere
	// ReasonUnmountFails: the volume cannot be unmounted from a path that it
	// should leave.
	ReasonUnmountFails = conditions.UnmountFails
)

var inaccessible = conditions.Unusable(conditions.Volume)

// NodeGetVolumeHealth reports lvmd's conditions of the volume and the plugin's
// own. The list is empty if the volume is healthy.
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
		if err := n.kubelet.CheckPath(field, path); err != nil {
			return nil, err
		}
	}
	v, err := n.find(ctx, id)
	if err != nil {
		return nil, err
	}
	points, err := n.devices.mounts.Below(string(n.kubelet))
	if err != nil {
		return nil, err
	}
	entries, err := n.monitor.healthOf(v, points)
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: id, HealthStatuses: entries}}, nil
}

func (m *monitor) healthOf(v *lvmdv1.Volume, points []mount.Point) ([]*csi.VolumeHealth_VolumeHealthEntry, error) {
	var entries []*csi.VolumeHealth_VolumeHealthEntry
	for _, c := range v.GetConditions() {
		status := csi.VolumeHealthErrorType_DEGRADED
		if slices.Contains(inaccessible, c.GetType()) {
			status = csi.VolumeHealthErrorType_INACCESSIBLE
		}
		entries = append(entries, &csi.VolumeHealth_VolumeHealthEntry{Status: status, Reason: c.GetType(), Message: c.GetMessage()})
	}
	if entry := m.unmounter.health(v); entry != nil {
		entries = append(entries, entry)
	}
	v, open, err := m.encryption.opened(v)
	if err != nil || !open {
		return entries, err
	}
	if entry := m.limits.health(v, points); entry != nil {
		entries = append(entries, entry)
	}
	entry, err := m.fileSystemHealth(v, points)
	if entry != nil {
		entries = append(entries, entry)
	}
	return entries, err
}

// maxHealthMessage bounds, in bytes, the part of a message that other programs
// wrote: lvmd rejects messages above 1024.
const maxHealthMessage = 900

func cut(message string) string {
	if len(message) > maxHealthMessage {
		return strings.ToValidUTF8(message[:maxHealthMessage], "") + "…"
	}
	return message
}

// mountedElsewhere describes the mounts of a volume that the kubelet's
// directory does not show. A Pod may mount the raw block volume that it has.
func (m *monitor) mountedElsewhere(v *lvmdv1.Volume) (*csi.VolumeHealth_VolumeHealthEntry, error) {
	device := deviceOf(v)
	if inUse, err := m.mounts.InUse(device); err != nil || !inUse {
		return nil, err
	}
	// Read the layers again: the volume may have been staged since.
	points, err := m.mounts.Below(string(m.kubelet))
	used := func(p mount.Point) bool {
		shown, _ := m.devices.deviceShown(p)
		return shown == device
	}
	if err != nil || slices.ContainsFunc(points, used) {
		return nil, err
	}
	return &csi.VolumeHealth_VolumeHealthEntry{
		Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonMountedElsewhere,
		Message: "no Pod uses the volume, and it can be neither staged nor deleted: " + cut(m.devices.holdersOf(device)),
	}, nil
}

// fileSystemHealth returns only the worst problem. One layer is enough, as all
// share the file system; the layers stay rw when the kernel turns it read-only.
func (m *monitor) fileSystemHealth(v *lvmdv1.Volume, points []mount.Point) (*csi.VolumeHealth_VolumeHealthEntry, error) {
	i := slices.IndexFunc(points, func(p mount.Point) bool { return p.Device == deviceOf(v) && p.Root == "/" })
	if i < 0 {
		return m.mountedElsewhere(v)
	}
	p := points[i]
	// Test as the kubelet does, which then cleans the mount up.
	if _, err := m.mounts.At(p.Path); mountutils.IsCorruptedMnt(err) {
		return &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: ReasonFileSystemFailed,
			Message: fmt.Sprintf("the file system at %s answers with I/O errors", p.Path),
		}, nil
	}
	found, err := m.mounts.Errors(p.Device)
	if err != nil {
		return nil, err
	}
	warnings, err := m.mounts.Warnings(p.Device)
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
			Status: csi.VolumeHealthErrorType_DEGRADED, Reason: ReasonFileSystemErrors,
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
