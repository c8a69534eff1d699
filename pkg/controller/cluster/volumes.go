package cluster

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// Finalizer keeps a PersistentVolume until its volume is gone from the
// node. The name is the upstream provisioner's, which others look for.
const Finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// NodeOf returns the node that holds a PersistentVolume of ours, or false for
// one that names none or several. What it was made with counts where it has no nodeAffinity:
// an affinity, once set, cannot be changed, and is what Kubernetes goes by.
func NodeOf(pv *v1.PersistentVolume) (string, bool) {
	if pv.Spec.NodeAffinity == nil {
		return RecordedNode(pv)
	}
	if pv.Spec.NodeAffinity.Required == nil {
		return "", false
	}
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 {
		return "", false
	}
	for _, e := range terms[0].MatchExpressions {
		if e.Key == names.TopologyNode && e.Operator == v1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0], true
		}
	}
	return "", false
}

// RecordedNode returns the node that a PersistentVolume which was made without nodeAffinity
// names, whether it has one now or not.
func RecordedNode(pv *v1.PersistentVolume) (string, bool) {
	if pv.Spec.CSI == nil || pv.Spec.CSI.VolumeAttributes[names.ContextNode] == "" {
		return "", false
	}
	return pv.Spec.CSI.VolumeAttributes[names.ContextNode], true
}

// NodeAffinity pins a PersistentVolume to a node.
func NodeAffinity(node string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: names.TopologyNode, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
}

// IsOurs reports whether a PersistentVolume is of this driver, made by us or by an
// administrator.
func IsOurs(pv *v1.PersistentVolume) bool {
	if by, ok := pv.Annotations[volume.AnnDynamicallyProvisioned]; ok && by != names.Driver {
		return false
	}
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver
}

// BelongsTo reports whether a PersistentVolume is bound, or pre-bound, to this
// very claim.
func BelongsTo(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name && ref.UID == claim.UID
}

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
	return NodeOf(pvs[0])
}

func (c *Cluster) withHandle(id string) []*v1.PersistentVolume {
	return indexed(c.Volumes, ByHandle, id)
}

// ByHandle is the index of our PersistentVolumes by volume id.
const ByHandle = "handle"

// handleIndexer indexes our PersistentVolumes by volume id.
func handleIndexer(pv *v1.PersistentVolume) ([]string, error) {
	if !IsOurs(pv) {
		return nil, nil
	}
	return []string{pv.Spec.CSI.VolumeHandle}, nil
}

// VolumeOn returns the PersistentVolume of a volume that a node reports, if it names
// that node. A report counts for volumes of its own node only, whatever ids it has.
func (c *Cluster) VolumeOn(node, id string) *v1.PersistentVolume {
	for _, pv := range c.withHandle(id) {
		if named, one := NodeOf(pv); one && named == node {
			return pv
		}
	}
	return nil
}
