//go:build apiserver

package controller

import (
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The node rejected the deletion of the volume, which was then made available, and a claim
// names it. Its Secret is in the claim's namespace.
func TestAnAvailableVolumeThatIsDeletedEndsOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = "default"
	install(t, client)
	storage := w.class(t, withKey("${pvc.name}-key", "${pvc.namespace}"))
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, storage, "n1", named("data", nil))
	w.waitBound(t, claim)
	w.finalized(t, claim)
	w.refuseDeletes("n1", 1<<30, lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "not now"))
	w.delete(t, claim)
	waittest.Until(t, "volume is released", func() bool { return w.pv(claim).Status.Phase == v1.VolumeReleased })
	w.patchPV(t, claim, `{"spec":{"claimRef":null}}`)
	waittest.Until(t, "volume is available", func() bool { return w.pv(claim).Status.Phase == v1.VolumeAvailable })
	must.Succeed(t, client.CoreV1().PersistentVolumes().Delete(t.Context(), w.volumeOf(claim), metav1.DeleteOptions{}))
	waittest.Until(t, "volume is released again", func() bool { return w.pv(claim).Status.Phase == v1.VolumeReleased })
	late := w.claim(t, storage, "", named("late", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = w.volumeOf(claim) }))
	w.refuseDeletes("n1", 0, nil)
	waittest.Until(t, "volume and PersistentVolume are gone", func() bool { return w.pv(claim) == nil && len(w.nodes["n1"].Volumes()) == 0 })
	if now := w.get(late); now.Status.Phase == v1.ClaimBound {
		t.Errorf("the claim that came late is bound: %+v", now.Status)
	}
	w.delete(t, late)
}
