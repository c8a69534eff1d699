package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
)

func recreate(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{names.ParamOnNodeLoss: names.NodeLossRecreate}
}

func (h *harness) claimIsGone(name string) bool {
	_, err := h.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (h *harness) deleteNode(name string) {
	h.t.Helper()
	if err := h.client.CoreV1().Nodes().Delete(h.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) taint(name, key string) {
	h.t.Helper()
	node, err := h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
	if _, err := h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// untaint takes all taints away.
func (h *harness) untaint(name string) {
	h.t.Helper()
	node, err := h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Spec.Taints = nil
	if _, err := h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// cutOff takes a node's uplink away.
func (h *harness) cutOff(name string) {
	h.t.Helper()
	h.net.Detach(name)
	h.eventually(name+" is away", func() bool { v, _ := h.c.core.fleet.View(name); return !v.Connected })
}

// losing are the ways to lose a node for good.
var losing = map[string]func(*harness, string){
	"its Node object is deleted":                 func(h *harness, node string) { h.deleteNode(node) },
	"an administrator says it is out of service": func(h *harness, node string) { h.taint(node, v1.TaintNodeOutOfService) },
}

func TestANodeThatIsLostTakesAlongTheClaimsWhoseClassSaysSo(t *testing.T) {
	for name, lose := range losing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", recreate)
			h.run()
			h.boundVolume("c", "n1")
			h.net.Detach("n1")
			lose(h, "n1")
			h.event("Warning NodeLost", "n1", "made again elsewhere")
			h.eventually("claim and volume are gone", func() bool { return h.claimIsGone("c") && h.volumes() == 0 })
		})
	}
}

func TestANodeThatIsLostLeavesOtherClaimsAndTheUserIsTold(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.net.Detach("n1")
	h.deleteNode("n1")
	h.event("Warning NodeLost", "n1", "kept", "Delete the claim")
	if h.claimIsGone("c") || h.volumes() != 1 {
		t.Fatal("a claim that is to be kept was given up")
	}
	h.deleteClaim("c")
	h.eventually("volume is gone with its claim", func() bool { return h.volumes() == 0 })
}

func TestWhatIsNotLostIsLeftAlone(t *testing.T) {
	for name, test := range map[string]func(*harness){
		"a node that is only disconnected":                func(h *harness) { h.net.Detach("n1") },
		"a node that is not ready":                        func(h *harness) { h.net.Detach("n1"); h.taint("n1", v1.TaintNodeNotReady) },
		"a node without Node object whose lvmd is alive":  func(h *harness) { h.deleteNode("n1") },
		"a node that is out of service and yet connected": func(h *harness) { h.taint("n1", v1.TaintNodeOutOfService) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", recreate)
			h.run()
			h.boundVolume("c", "n1")
			test(h)
			time.Sleep(300 * time.Millisecond)
			if h.claimIsGone("c") || h.volumes() != 1 {
				t.Error("a claim was given up")
			}
		})
	}
}

func TestANodeThatIsRegisteredAnewIsNotLost(t *testing.T) {
	h := newHarness(t)
	h.c.core.losses.grace = 500 * time.Millisecond
	h.node("n1", gib)
	h.class("carve", recreate)
	h.run()
	h.boundVolume("c", "n1")
	h.net.Detach("n1")
	h.deleteNode("n1")
	time.Sleep(100 * time.Millisecond)
	h.node("n1", 0)
	time.Sleep(700 * time.Millisecond)
	if h.claimIsGone("c") || h.volumes() != 1 {
		t.Error("a claim was given up")
	}
}

// The claim goes with its Pod, which Kubernetes removes from such a node: that is
// what the test does.
func TestEphemeralVolumesOfANodeThatIsLostGoWithTheirPodsWhateverTheirClassSays(t *testing.T) {
	for name, lose := range losing {
		for policy, class := range map[string]func(*storagev1.StorageClass){names.NodeLossKeep: nil, names.NodeLossRecreate: recreate} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t)
				h.node("n1", gib)
				h.class("carve", class)
				h.run()
				h.claim("c", "n1", ofPod)
				h.eventually("claim is bound", h.bound("c"))
				h.net.Detach("n1")
				lose(h, "n1")
				for range 2 { // the claim and the Pod
					h.event("Warning NodeLost", "n1", "goes with its Pod")
				}
				if h.claimIsGone("c") || h.volumes() != 1 {
					t.Fatal("the claim was deleted before its Pod")
				}
				h.deleteClaim("c")
				h.eventually("the volume is gone with its claim", func() bool { return h.volumes() == 0 })
			})
		}
	}
}

func TestPodsThatUseAKeptVolumeOfALostNodeAreToldEachOnce(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.pod("user", "n1", "c", v1.PodRunning)
	h.pod("done", "n1", "c", v1.PodSucceeded)
	h.pod("other", "n1", "another", v1.PodRunning)
	h.drain()
	h.net.Detach("n1")
	h.deleteNode("n1")
	said := []string{"Warning NodeLost", "n1", "kept", "Delete the claim"}
	for range 2 { // the claim and the Pod
		h.event(said...)
	}
	// The Pod that a StatefulSet makes in its place.
	h.unscheduled("db-0", byName("c"))
	h.event(said...)
	h.unscheduled("db-1", byName("c"))
	h.event(said...)
	time.Sleep(5 * h.c.core.losses.grace) // some passes
	for _, e := range h.drain() {
		if strings.Contains(e, "NodeLost") {
			t.Errorf("told again: %s", e)
		}
	}
}
