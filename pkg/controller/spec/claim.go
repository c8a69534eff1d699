package spec

import (
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
