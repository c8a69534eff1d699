//go:build apiserver

package controller

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// adopt makes a volume by hand on n1 for a claim, as in docs/how-to/existing-volumes.md.
func (w *world) adopt(t *testing.T, policy v1.PersistentVolumeReclaimPolicy) *v1.PersistentVolumeClaim {
	t.Helper()
	w.volume = w.namespace + "-by-hand"
	made := must.Get(w.nodes["n1"].CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{
		Name: w.volume, RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: "ext4"}))(t)
	class := w.class(t, nil)
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("100Mi")}
	must.Get(w.client.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.volume, Annotations: map[string]string{volume.AnnDynamicallyProvisioned: names.Driver}},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: policy, StorageClassName: class,
			ClaimRef:     &v1.ObjectReference{Namespace: w.namespace, Name: "claim"},
			NodeAffinity: objects.NodeAffinity("n1"),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: made.GetVolume().GetId(), FSType: "ext4"}},
		},
	}, metav1.CreateOptions{}))(t)
	claim := w.claim(t, class, "", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = w.volume })
	w.waitBound(t, claim)
	return claim
}

func (w *world) finalized(t *testing.T, claim *v1.PersistentVolumeClaim) {
	t.Helper()
	waittest.Until(t, "the volume has its finalizer", w.volumeIs(claim, hasFinalizer))
}

var staticScenarios = []scenario{
	{name: "an administrator's volume", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.adopt(t, v1.PersistentVolumeReclaimDelete)
		w.finalized(t, claim)
		return claim
	}},
	{name: "an administrator's volume, deleted under Delete", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.adopt(t, v1.PersistentVolumeReclaimDelete)
		w.finalized(t, claim)
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
		return claim
	}},
	{name: "an administrator's volume, deleted under Retain, and given to a claim again", run: func(t *testing.T, w *world) *v1.PersistentVolumeClaim {
		claim := w.adopt(t, v1.PersistentVolumeReclaimRetain)
		w.delete(t, claim)
		waittest.Until(t, "volume is released", w.volumeIs(claim, phaseIs(v1.VolumeReleased)))
		w.note("released: %d volumes, finalizers %v", w.observe(t, claim).volumes(), w.pv(claim).Finalizers)
		w.patchPV(t, claim, `{"spec":{"claimRef":null}}`)
		waittest.Until(t, "volume is available", w.volumeIs(claim, phaseIs(v1.VolumeAvailable)))
		claim = w.claim(t, "scenario", "", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = w.volume })
		w.waitBound(t, claim)
		return claim
	}},
}
