package controller

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) waitingPod(name string, change func(*v1.Pod)) {
	h.t.Helper()
	yes := true
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "uid-db", Controller: &yes}}},
		Spec:   v1.PodSpec{NodeName: "n1", Volumes: []v1.Volume{claimVolume("c")}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if change != nil {
		change(pod)
	}
	must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), pod, metav1.CreateOptions{}))(h.t)
}

func (h *harness) podIsGone(name string) bool {
	_, err := h.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// keepClaims makes the API server keep deleted claims, as while a Pod uses them.
func (h *harness) keepClaims() {
	h.react("delete", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
}

func TestPodsThatWaitForAVolumeThatIsGivenUpAreDeletedWhereTheyAreMadeAgain(t *testing.T) {
	w := newAuditing(t, names.NodeLossRecreate)
	w.keepClaims()
	w.waitingPod("db-0", nil)
	spared := map[string]func(*v1.Pod){
		"on-another-node":  func(p *v1.Pod) { p.Spec.NodeName = "n2" },
		"without-node":     func(p *v1.Pod) { p.Spec.NodeName = "" },
		"of-another-claim": func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{claimVolume("other")} },
		"ready": func(p *v1.Pod) {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		},
		"not-made-again": func(p *v1.Pod) { p.OwnerReferences = nil },
		"ended":          func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded },
	}
	for name, change := range spared {
		w.waitingPod(name, change)
	}
	w.reboot(otherDisks())
	w.pass()
	if w.podIsGone("db-0") {
		t.Fatal("a Pod was deleted at first sight")
	}
	w.event("Warning VolumeMissing", "where a controller makes them again; others have to be deleted")
	w.pass()
	w.event("Warning NodeLost", "claim c", "node n1 has other disks", "StatefulSet db makes it again")
	if !w.podIsGone("db-0") {
		t.Error("the Pod still waits")
	}
	w.pass()
	for name := range spared {
		if w.podIsGone(name) {
			t.Errorf("the Pod %s was deleted", name)
		}
	}
}

func TestEphemeralVolumesOnOtherDisksAreReleasedWithTheirPods(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	must.Get(w.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "c", types.MergePatchType, []byte(
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"uid-web","controller":true}]}}`), metav1.PatchOptions{}))(t)
	waittest.Until(w.t, "the claim has an owner", func() bool { return spec.OwnerPod(w.c.core.Claim("uid-c")) != nil })
	inPod := func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	}
	w.waitingPod("web", func(p *v1.Pod) { inPod(p); p.Spec.Volumes[0].Name = "no-volume-of-that-name" })
	w.reboot(otherDisks())
	w.pass()
	w.event("Warning VolumeMissing", "goes with its Pod")
	w.pass()
	if w.podIsGone("web") {
		t.Fatal("a Pod was deleted that has no such volume")
	}

	w = newAuditing(t, names.NodeLossKeep)
	// Kubernetes names such a claim after its Pod and volume: web-scratch.
	w.claim("web-scratch", "n1", func(c *v1.PersistentVolumeClaim) {
		yes := true
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "uid-web", Controller: &yes}}
	})
	waittest.Until(w.t, "the ephemeral claim is bound", w.bound("web-scratch"))
	w.waitingPod("web", inPod)
	w.reboot(otherDisks())
	waittest.Until(w.t, "the Pod is deleted", func() bool { w.pass(); return w.podIsGone("web") })
	if w.claimIsGone("web-scratch") || w.claimIsGone("c") {
		t.Error("a claim was deleted, which is for its owner's deletion to do")
	}
}

// The Pod may wait for CPU or memory on a node that no longer has its volume.
func TestClaimOfUnplacedPodIsDeletedWithLostDisksWhateverItsClass(t *testing.T) {
	for _, policy := range []string{names.NodeLossRecreate, names.NodeLossKeep} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newAuditing(t, policy)
			w.unscheduled("web", inTemplate("scratch"))
			w.claim("web-scratch", "n1", ofWeb("100Mi"))
			waittest.Until(w.t, "the claim is bound", w.bound("web-scratch"))
			w.reboot(otherDisks())
			w.pass()
			if w.claimIsGone("web-scratch") {
				t.Fatal("the claim was deleted at first sight")
			}
			w.event("Warning VolumeMissing", "is to be deleted")
			for range 3 {
				w.a.Pass(t.Context())
			}
			if !w.claimIsGone("web-scratch") || w.claimIsGone("c") != (policy == names.NodeLossRecreate) {
				t.Errorf("the ephemeral claim is deleted: %t, the other: %t", w.claimIsGone("web-scratch"), w.claimIsGone("c"))
			}
			if w.podIsGone("web") {
				t.Error("the Pod was deleted")
			}
		})
	}
}

func TestPodsAreForOthersToDeleteWhereTheRightWasTakenAway(t *testing.T) {
	w := newAuditing(t, names.NodeLossRecreate)
	w.react("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "", nil)
	})
	w.waitingPod("db-0", nil)
	w.reboot(otherDisks())
	w.pass()
	w.a.Pass(t.Context())
	waittest.Until(w.t, "the claim is given up", func() bool { return w.claimIsGone("c") })
	if w.podIsGone("db-0") {
		t.Error("a Pod was deleted")
	}
}
