package spec

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
)

// OwnerPod returns the Pod of a generic ephemeral volume's claim, complete enough for an Event, or
// nil for any other claim.
func OwnerPod(claim *v1.PersistentVolumeClaim) *v1.ObjectReference {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	return &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: claim.Namespace, Name: owner.Name, UID: owner.UID}
}

// VolumeName returns the CSI name of a claim's volume, which is also its PersistentVolume's name.
func VolumeName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// BindsLate reports whether claims of a class wait for the scheduler to select a node
// (volumeBindingMode WaitForFirstConsumer). Others bind immediately.
func BindsLate(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Movable reports whether a StorageClass lets Pods with generic ephemeral volumes move.
func Movable(class *storagev1.StorageClass) bool {
	return class.Parameters[names.ParamPodVolumes] == names.PodVolumesMovable
}

// MayMove reports whether a claim's volume gets no nodeAffinity: it ends with the only Pod that can
// use it, and the next Pod's volume may be created on any node. A claim with a data source is bound
// to the source's node.
func MayMove(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return Movable(class) && OwnerPod(claim) != nil && claim.Spec.DataSource == nil && claim.Spec.DataSourceRef == nil
}

// checkMovable rejects a class whose movable volumes could outlive their Pods, or be created before
// the scheduler selects a node: it would then choose another one.
func checkMovable(class *storagev1.StorageClass) error {
	field, given := ClassField(class, names.ParamPodVolumes), fmt.Sprintf("%q", names.PodVolumesMovable)
	switch {
	case !Movable(class):
	case !BindsLate(class):
		return &InvalidError{Field: field, Given: given + " with volumeBindingMode Immediate", Allowed: string(storagev1.VolumeBindingWaitForFirstConsumer)}
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		return &InvalidError{Field: field, Given: fmt.Sprintf("%s with reclaimPolicy %s", given, *class.ReclaimPolicy), Allowed: string(v1.PersistentVolumeReclaimDelete)}
	}
	return nil
}

// AllowedBy reports whether a StorageClass's allowedTopologies permit a node: all expressions of a
// term must match. No terms permit all nodes.
func AllowedBy(terms []v1.TopologySelectorTerm, node *v1.Node) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term v1.TopologySelectorTerm) bool {
		for _, e := range term.MatchLabelExpressions {
			value, ok := node.Labels[e.Key]
			if e.Key == names.TopologyNode {
				value, ok = node.Name, true // even before the kubelet has set the label
			}
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return true
	})
}
