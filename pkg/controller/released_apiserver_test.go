//go:build apiserver

package controller

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Kubernetes' PV controller changes the phase of a volume only after the write that gives it
// to another claim.
func TestVolumeGivenToAnotherClaimStaysOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	for name, test := range map[string]struct {
		next  func(volume string) func(*v1.PersistentVolumeClaim)
		patch string // in addition to claimRef
		// retained: the first claim is deleted earlier, under Retain.
		retained bool
	}{
		"by an administrator": {retained: true, patch: `"persistentVolumeReclaimPolicy":"Delete",`,
			next: func(volume string) func(*v1.PersistentVolumeClaim) {
				return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
			}},
		"by a volume populator": {next: func(string) func(*v1.PersistentVolumeClaim) {
			group := "populator.example.com"
			return func(c *v1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: "Source", Name: "source"}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, client)
			w.namespace = ours
			install(t, client)
			storage := w.class(t, nil)
			actOn(t, w, Options{Client: asController(t), Namespace: ours})
			first := w.claim(t, storage, "n1", named("first", nil))
			w.waitBound(t, first)
			w.finalized(t, first)
			if test.retained {
				w.patchPV(t, first, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
				w.delete(t, first)
				waittest.Until(t, "volume is released", w.volumeIs(first, phaseIs(v1.VolumeReleased)))
			}
			w.volume = w.volumeOf(first)
			next := w.claim(t, storage, "", named("next", test.next(w.volume)))
			w.patchPV(t, next, fmt.Sprintf(`{"spec":{%s"claimRef":{"namespace":%q,"name":%q,"uid":%q}}}`, test.patch, next.Namespace, next.Name, next.UID))
			if !test.retained {
				w.delete(t, first)
			}
			w.waitBound(t, next)
			w.finalized(t, next)
			if n := len(w.nodes["n1"].Volumes()); n != 1 || w.pv(next).DeletionTimestamp != nil {
				t.Fatalf("%d volumes on the node, the PersistentVolume is deleted at %v, want the volume kept", n, w.pv(next).DeletionTimestamp)
			}
			w.delete(t, next)
			w.waitNothingLeft(t, next)
		})
	}
}

func TestClaimMarkedAsBoundGetsNoVolumeOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, nil)
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, storage, "n1", named("marked", func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnBindCompleted] = "yes" }))
	waittest.Until(t, "claim is lost", func() bool { return w.get(claim).Status.Phase == v1.ClaimLost })
	waittest.Until(t, "an Event has the remedy", func() bool {
		return w.eventOn(t, claim, "ProvisioningFailed", "kubectl annotate pvc marked pv.kubernetes.io/bind-completed-") != nil
	})
	if volumes := w.nodes["n1"].Volumes(); len(volumes) != 0 {
		t.Errorf("got volumes %v for a lost claim, want none", volumes)
	}
	must.Get(client.CoreV1().PersistentVolumeClaims(ours).Patch(t.Context(), claim.Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+volume.AnnBindCompleted+`":null}}}`), metav1.PatchOptions{}))(t)
	w.waitBound(t, claim)
}

// The PersistentVolume is deleted, as for a replacement.
func TestVolumeOfLostClaimIsNoOrphanOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, nil)
	c, _ := actOn(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, storage, "n1", named("lost", nil))
	w.waitBound(t, claim)
	w.finalized(t, claim)
	w.patchPV(t, claim, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	must.Succeed(t, client.CoreV1().PersistentVolumes().Delete(t.Context(), w.volumeOf(claim), metav1.DeleteOptions{}))
	w.patchPV(t, claim, `{"metadata":{"finalizers":null}}`)
	waittest.Until(t, "claim is lost", func() bool { return w.get(claim).Status.Phase == v1.ClaimLost })
	cached := func() bool { _, err := c.core.VolumeLister.Get(w.volumeOf(claim)); return err == nil }
	waittest.Until(t, "the cache lacks the PersistentVolume", func() bool { return !cached() })

	a := newAuditor(c.core, true, 0, func(string) bool { return false })
	a.Pass(t.Context())
	if len(w.nodes["n1"].Volumes()) != 1 {
		t.Error("the volume of a claim that is there was removed")
	}
	w.delete(t, claim)
	waittest.Until(t, "the orphan is removed", func() bool { a.Pass(t.Context()); return len(w.nodes["n1"].Volumes()) == 0 })
}
