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

// Finalizer keeps a PersistentVolume until its volume is gone from the node. It is the upstream
// provisioner's, which others look for.
const Finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// IsReleased reports whether a volume's status says that its claim is gone.
func IsReleased(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}

// ReadVolume reads a PersistentVolume and its claim from the API server, because the caches may be
// outdated: call it before irreversible steps. The PersistentVolume is nil if it is gone or was
// recreated; the claim is nil if none has the UID in spec.claimRef.
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

// VolumeGroup is the content of the annotation names.AnnotationVolumeGroup. A volume never leaves
// its group. A group with the same name and another UUID was recreated, on other or on wiped disks.
type VolumeGroup struct{ Name, UUID string }

// GroupOf returns the volume group of a reported volume.
func GroupOf(vol *lvmdv1.Volume) VolumeGroup { return VolumeGroup{vol.GetVgName(), vol.GetVgUuid()} }

// String returns the group in the annotation's format.
func (n VolumeGroup) String() string { return n.Name + "/" + n.UUID }

// Known reports whether the group has a name and a UUID.
func (n VolumeGroup) Known() bool { return n.Name != "" && n.UUID != "" }

// NotedGroup returns the group in a PersistentVolume's annotation.
func NotedGroup(pv *v1.PersistentVolume) VolumeGroup {
	name, uuid, _ := strings.Cut(pv.Annotations[names.AnnotationVolumeGroup], "/") // neither has a slash
	return VolumeGroup{name, uuid}
}

// NodeOfVolume returns the node of our PersistentVolume for a volume id.
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

// ByHandle indexes our PersistentVolumes by volume id.
const ByHandle = "handle"

func handleIndexer(pv *v1.PersistentVolume) ([]string, error) {
	if !objects.IsOurs(pv) {
		return nil, nil
	}
	return []string{pv.Spec.CSI.VolumeHandle}, nil
}

// VolumeOn returns the PersistentVolume of a volume that a node reports, if it names that node. A
// report only counts for volumes of its own node, whatever their ids.
func (c *Cluster) VolumeOn(node, id string) *v1.PersistentVolume {
	for _, pv := range c.withHandle(id) {
		if named, one := objects.NodeOf(pv); one && named == node {
			return pv
		}
	}
	return nil
}
