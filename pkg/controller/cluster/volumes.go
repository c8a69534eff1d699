package cluster

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
)

// Finalizer keeps a PersistentVolume until its volume is gone from the
// node. The name is the upstream provisioner's, which others look for.
const Finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// IsReleased reports whether the status of a volume says that its claim is gone.
func IsReleased(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}

// ReadVolume reads a PersistentVolume and its claim at the API server, because the caches may be
// behind: call it before what cannot be undone. The PersistentVolume is nil if it is gone or was
// made again, the claim is nil if none exists under the UID in spec.claimRef.
func (c *Cluster) ReadVolume(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, *v1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	now, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != pv.UID:
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read PersistentVolume %s: %w", pv.Name, err)
	}
	ref := now.Spec.ClaimRef
	if ref == nil {
		return now, nil, nil
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && claim.UID != ref.UID:
		return now, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return now, claim, nil
}

// VolumeGroup is what the annotation names.AnnotationVolumeGroup says: a volume
// group by name and UUID. A volume never leaves its group; a group
// of the same name with another UUID was made again, on other disks or on wiped
// ones.
type VolumeGroup struct{ Name, UUID string }

// GroupOf returns the volume group of a volume that a node reports.
func GroupOf(vol *lvmdv1.Volume) VolumeGroup { return VolumeGroup{vol.GetVgName(), vol.GetVgUuid()} }

// String returns the group as an annotation says it.
func (n VolumeGroup) String() string { return n.Name + "/" + n.UUID }

// Known reports whether there is anything to note.
func (n VolumeGroup) Known() bool { return n.Name != "" && n.UUID != "" }

// NotedGroup returns what a PersistentVolume has noted.
func NotedGroup(pv *v1.PersistentVolume) VolumeGroup {
	name, uuid, _ := strings.Cut(pv.Annotations[names.AnnotationVolumeGroup], "/") // neither has a slash
	return VolumeGroup{name, uuid}
}

// NodeOfVolume returns the node that a PersistentVolume of ours names for a
// volume.
func (c *Cluster) NodeOfVolume(id string) (string, bool) {
	pvs := c.withHandle(id)
	if len(pvs) == 0 {
		return "", false
	}
	return objects.NodeOf(pvs[0])
}

func (c *Cluster) withHandle(id string) []*v1.PersistentVolume {
	return indexed(c.Volumes, ByHandle, id)
}

// ByHandle is the index of our PersistentVolumes by volume id.
const ByHandle = "handle"

// handleIndexer indexes our PersistentVolumes by volume id.
func handleIndexer(pv *v1.PersistentVolume) ([]string, error) {
	if !objects.IsOurs(pv) {
		return nil, nil
	}
	return []string{pv.Spec.CSI.VolumeHandle}, nil
}

// VolumeOn returns the PersistentVolume of a volume that a node reports, if it names
// that node. A report counts for volumes of its own node only, whatever ids it has.
func (c *Cluster) VolumeOn(node, id string) *v1.PersistentVolume {
	for _, pv := range c.withHandle(id) {
		if named, one := objects.NodeOf(pv); one && named == node {
			return pv
		}
	}
	return nil
}
