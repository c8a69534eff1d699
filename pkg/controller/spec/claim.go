package spec

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
)

// OwnerPod returns the Pod of a generic ephemeral volume's claim, with all that an Event on
// the Pod needs, and nil for any other claim.
func OwnerPod(claim *v1.PersistentVolumeClaim) *v1.ObjectReference {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	return &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: claim.Namespace, Name: owner.Name, UID: owner.UID}
}

// VolumeName is the CSI name of a claim's volume, and the name of its PersistentVolume.
func VolumeName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// BindsLate reports whether claims of a class wait until the scheduler has selected a node
// (volumeBindingMode WaitForFirstConsumer). The others bind immediately.
func BindsLate(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Movable reports whether a StorageClass lets Pods with generic ephemeral volumes move.
func Movable(class *storagev1.StorageClass) bool {
	return class.Parameters[names.ParamPodVolumes] == names.PodVolumesMovable
}

// MayMove reports whether the volume that is made for a claim has no nodeAffinity: it ends with
// the only Pod that can use it, and the next Pod's can be made on any node, which one with a data
// source cannot.
func MayMove(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return Movable(class) && OwnerPod(claim) != nil && claim.Spec.DataSource == nil && claim.Spec.DataSourceRef == nil
}

// checkMovable refuses a class whose movable volumes could outlive their Pods, or be made before
// the scheduler has looked for a node: it would then go to another one than the volume's.
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

// AllowedBy reports whether a StorageClass's allowedTopologies allow a volume on a node: one
// term must match entirely. No terms allow all nodes.
func AllowedBy(terms []v1.TopologySelectorTerm, node *v1.Node) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term v1.TopologySelectorTerm) bool {
		for _, e := range term.MatchLabelExpressions {
			value, ok := node.Labels[e.Key]
			if e.Key == names.TopologyNode {
				value, ok = node.Name, true // also before the kubelet has set the label
			}
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return true
	})
}
