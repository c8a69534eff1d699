//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Many volumes without a claim keep the PV controller behind: it makes a call for each, at 20
// calls per second, which is more than it can do between its resyncs every 15 seconds. It
// marks a claim Lost that is bound while its volume still waits in the queue.
func TestNoClaimIsCalledLostWhileThePVControllerIsBehind(t *testing.T) {
	const claims, unclaimed = 20, 20 // unclaimed: per claim
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	class := w.class(t, nil)
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	unclaimedVolume := func(name string) {
		pv := volumeOf(name, otherDriver, "")
		must.Get(client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumes().Delete(context.Background(), pv.Name, metav1.DeleteOptions{})
		})
	}
	// It processes these at its start.
	unclaimedVolume("unclaimed")
	waittest.Until(t, "the PV controller has started", func() bool {
		return must.Get(client.CoreV1().PersistentVolumes().Get(t.Context(), "unclaimed", metav1.GetOptions{}))(t).Status.Phase == v1.VolumeAvailable
	})
	changes := must.Get(client.CoreV1().PersistentVolumeClaims(ours).Watch(t.Context(), metav1.ListOptions{}))(t)
	defer changes.Stop()
	var made []*v1.PersistentVolumeClaim
	for i := range claims {
		for j := range unclaimed {
			unclaimedVolume(fmt.Sprintf("unclaimed-%d-%d", i, j))
		}
		claim := w.claim(t, class, "n1", named(fmt.Sprintf("behind-%d", i), func(c *v1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("4Mi")
		}))
		t.Cleanup(func() {
			_ = client.CoreV1().PersistentVolumeClaims(ours).Delete(context.Background(), claim.Name, metav1.DeleteOptions{})
			waittest.Until(t, "its volume is gone", func() bool { return w.pv(claim) == nil })
		})
		made = append(made, claim)
	}
	for _, claim := range made {
		w.waitBound(t, claim)
	}
	waittest.Until(t, "the PV controller has seen all volumes", func() bool {
		all := must.Get(client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{}))(t)
		return !slices.ContainsFunc(all.Items, func(pv v1.PersistentVolume) bool { return phaseIs(v1.VolumePending)(&pv) })
	})
	const last = "last"
	must.Succeed(t, patchClaimAs(client, made[0].Name, fmt.Sprintf(annotate, last)))
	var lost []string
	for e := range changes.ResultChan() {
		claim, ok := e.Object.(*v1.PersistentVolumeClaim)
		if !ok {
			t.Fatalf("the watch ended: %v", e.Object)
		}
		if claim.Status.Phase == v1.ClaimLost && !slices.Contains(lost, claim.Name) {
			lost = append(lost, claim.Name)
		}
		if claim.Annotations["probe"] == last {
			break
		}
	}
	if len(lost) > 0 {
		t.Errorf("claims were called Lost: %q", lost)
	}
}
