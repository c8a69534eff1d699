// Package objects reads PersistentVolumes and Pods: which node a volume is on, and which
// claims a Pod names. It is stateless and uses no client.
package objects

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
)

// NodeOf returns the node that holds a PersistentVolume of ours, or false if it names none or
// several. A nodeAffinity overrides the recorded node: it is immutable, and Kubernetes obeys
// it.
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

// RecordedNode returns the node recorded in a PersistentVolume that was made without
// nodeAffinity, even if it has one now.
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

// IsOurs reports whether a PersistentVolume is of this driver, even if an administrator made
// it.
func IsOurs(pv *v1.PersistentVolume) bool {
	if by, ok := pv.Annotations[volume.AnnDynamicallyProvisioned]; ok && by != names.Driver {
		return false
	}
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver
}

// BelongsTo reports whether a PersistentVolume is bound or pre-bound to the claim, by UID.
func BelongsTo(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name && ref.UID == claim.UID
}

// ClaimName returns the name of a Pod volume's claim, or false for a volume without one.
func ClaimName(pod *v1.Pod, v *v1.Volume) (string, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, true
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v), true
	}
	return "", false
}

// ClaimsNamed returns a Pod's claims as namespace/name, without duplicates.
func ClaimsNamed(pod *v1.Pod) []string {
	var keys []string
	for i := range pod.Spec.Volumes {
		if name, ok := ClaimName(pod, &pod.Spec.Volumes[i]); ok {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
