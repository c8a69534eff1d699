package provision

import (
	"fmt"
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
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// IdentityKey is the volume attribute for the provisioning process, as in the upstream
// provisioner.
const IdentityKey = "storage.kubernetes.io/csiProvisionerIdentity"

// NewIdentity names this process run in the upstream format.
func NewIdentity(now time.Time) string {
	return fmt.Sprintf("%d-%d-%s", now.UnixMilli(), rand.IntN(10000), names.Driver)
}

// NewPersistentVolume describes an existing volume: pre-bound to the claim, and pinned to the
// node unless it may move.
func NewPersistentVolume(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, node string, vol *lvmdv1.Volume, identity string) *v1.PersistentVolume {
	reclaim := v1.PersistentVolumeReclaimDelete // the API's default for StorageClasses
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        spec.VolumeName(claim),
			Annotations: map[string]string{volume.AnnDynamicallyProvisioned: names.Driver},
		},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   slices.Clone(claim.Spec.AccessModes),
			MountOptions:                  slices.Clone(class.MountOptions),
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(vol.GetSizeBytes(), resource.BinarySI)},
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			VolumeAttributesClassName:     claim.Spec.VolumeAttributesClassName,
			ClaimRef: &v1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver:       names.Driver,
				VolumeHandle: vol.GetId(),
				FSType:       vol.GetFsType(),
				VolumeAttributes: map[string]string{
					IdentityKey:              identity,
					names.ContextDeviceClass: vol.GetDeviceClass(),
				},
			}},
			NodeAffinity: objects.NodeAffinity(node),
		},
	}
	if spec.MayMove(claim, class) {
		pv.Spec.NodeAffinity, pv.Spec.CSI.VolumeAttributes[names.ContextNode] = nil, node
	}
	if class.Parameters[names.ParamOnNodeLoss] == names.NodeLossRecreate {
		pv.Annotations[names.ParamOnNodeLoss] = names.NodeLossRecreate
	}
	if note := cluster.GroupOf(vol); note.Known() {
		pv.Annotations[names.AnnotationVolumeGroup] = note.String()
	}
	// Cannot fail: ParseClaim has checked it.
	pv.Spec.CSI.NodeStageSecretRef, _ = spec.StageSecret(class, claim)
	if reclaim == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{cluster.Finalizer}
	}
	return pv
}
