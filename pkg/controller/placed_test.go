package controller

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) placed(name, node string, phase v1.PodPhase, volumes ...v1.Volume) {
	h.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{NodeName: node, Volumes: volumes}, Status: v1.PodStatus{Phase: phase}}
	must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), pod, metav1.CreateOptions{}))(h.t)
}

func TestAPodThatNamesItsNodeSelectsItForItsClaims(t *testing.T) {
	for name, podFirst := range map[string]bool{"the Pod is first": true, "the claims are first": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.node("n1", gib)
			n2 := h.node("n2", gib)
			h.class("carve", nil)
			h.run()
			if podFirst {
				h.placed("web", "n2", v1.PodPending, byName("data"), inTemplate("scratch"))
			}
			h.claim("data", "", nil)
			h.claim("web-scratch", "", ofWeb("100Mi"))
			if !podFirst {
				h.placed("web", "n2", v1.PodPending, byName("data"), inTemplate("scratch"))
			}
			waittest.Until(t, "both are bound", func() bool { return h.bound("data")() && h.bound("web-scratch")() })
			if len(n2.Volumes()) != 2 {
				t.Errorf("on n2: %v", n2.Volumes())
			}
		})
	}
}

func TestPodsThatSelectNoNode(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.placed("ended", "n1", v1.PodSucceeded, byName("a"))
	h.placed("failed", "n1", v1.PodFailed, byName("a"))
	h.placed("nowhere", "", v1.PodPending, byName("a"))
	h.placed("other", "n1", v1.PodPending, inTemplate("x")) // its claim other-x would be another Pod's
	h.claim("a", "", nil)
	h.claim("other-x", "", ofWeb("100Mi"))
	h.placed("one", "n1", v1.PodPending, byName("b"))
	h.claim("b", "", nil) // last
	waittest.Until(t, "b is bound", h.bound("b"))
	for _, name := range []string{"a", "other-x"} {
		if claim := h.getClaim(name); claim.Annotations[volume.AnnSelectedNode] != "" || claim.Spec.VolumeName != "" {
			t.Errorf("claim %s: %+v", name, claim)
		}
	}
}

func TestTheClaimOfAPodThatNamesItsNodeIsNotRescheduledFromThere(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.claim("large", "n1", ofSize("900Mi"))
	waittest.Until(t, "large is bound", h.bound("large"))
	h.placed("web", "n1", v1.PodPending, byName("data"))
	h.claim("data", "", ofSize("500Mi"))
	h.event("Warning ProvisioningFailed", "node n1", "is on that node already")
	if node := h.getClaim("data").Annotations[volume.AnnSelectedNode]; node != "n1" {
		t.Errorf("the claim has the node %q", node)
	}
	h.deleteClaim("large")
	waittest.Until(t, "data has its volume", func() bool { return h.pv("pvc-uid-data") != nil })
	if len(n1.Volumes()) != 1 {
		t.Errorf("on n1: %v", n1.Volumes())
	}
}
