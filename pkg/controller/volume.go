package controller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

const (
	// finalizer keeps a PersistentVolume until its volume is gone from the
	// node. The name is the upstream provisioner's, which others look for.
	finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	// identityKey is the volume attribute by which the upstream provisioner
	// says which process made a volume.
	identityKey = "storage.kubernetes.io/csiProvisionerIdentity"
)

// newIdentity names this life of the process, as the upstream provisioner does.
func newIdentity(now time.Time) string {
	return fmt.Sprintf("%d-%d-%s", now.UnixMilli(), rand.IntN(10000), names.Driver)
}

// volumeName is both the CSI name of a claim's volume and the name of its
// PersistentVolume.
func volumeName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// newPersistentVolume describes a volume that exists on a node to Kubernetes:
// pre-bound to the claim, and usable only on that node.
func newPersistentVolume(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, node string, vol *lvmdv1.Volume, identity string) *v1.PersistentVolume {
	reclaim := v1.PersistentVolumeReclaimDelete // the API's default for StorageClasses
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        volumeName(claim),
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: names.Driver},
		},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   slices.Clone(claim.Spec.AccessModes),
			MountOptions:                  slices.Clone(class.MountOptions),
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(vol.GetSizeBytes(), resource.BinarySI)},
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver:       names.Driver,
				VolumeHandle: vol.GetId(),
				FSType:       vol.GetFsType(),
				VolumeAttributes: map[string]string{
					identityKey:              identity,
					names.ContextDeviceClass: vol.GetDeviceClass(),
				},
			}},
			NodeAffinity: nodeAffinity(node),
		},
	}
	if class.Parameters[names.ParamOnNodeLoss] == names.NodeLossRecreate {
		pv.Annotations[names.ParamOnNodeLoss] = names.NodeLossRecreate
	}
	if note := noteOf(vol); note.known() {
		pv.Annotations[names.AnnotationVolumeGroup] = note.String()
	}
	// That it can be found is certain since the claim was accepted.
	pv.Spec.CSI.NodeStageSecretRef, _ = stageSecret(class, claim)
	if reclaim == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{finalizer}
	}
	return pv
}

func nodeAffinity(node string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: names.TopologyNode, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
}

// nodeOf returns the node that holds a PersistentVolume of ours, or false for
// one that names none or several.
func nodeOf(pv *v1.PersistentVolume) (string, bool) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
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

// isOurs tells PersistentVolumes of this driver, made by us or by an
// administrator.
func isOurs(pv *v1.PersistentVolume) bool {
	if by, ok := pv.Annotations[volume.AnnDynamicallyProvisioned]; ok && by != names.Driver {
		return false
	}
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver
}

// belongsTo tells whether a PersistentVolume is bound, or pre-bound, to this
// very claim.
func belongsTo(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name && ref.UID == claim.UID
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
