package controller

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) changeNode(name string, change func(*v1.Node)) {
	h.t.Helper()
	nodes := h.client.CoreV1().Nodes()
	node := must.Get(nodes.Get(h.t.Context(), name, metav1.GetOptions{}))(h.t).DeepCopy()
	change(node)
	must.Get(nodes.Update(h.t.Context(), node, metav1.UpdateOptions{}))(h.t)
}

func markToRemove(node *v1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: names.TaintScaleDownCandidate, Value: "1786925486", Effect: v1.TaintEffectPreferNoSchedule})
}

func cordon(node *v1.Node) { node.Spec.Unschedulable = true }

func TestAVolumeIsPinnedBeforeItsNodeIsRemovedThatFitsOnNoOther(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.pinGrace, c.core.shortFor = time.Millisecond, time.Millisecond })
	h.node("n1", gib)
	h.node("n2", 150*mib)
	h.node("n3", gib)
	h.class("carve", movable)
	h.run()
	moves := h.ownedClaim(h.ownedPod("db-0", "n1"), "n1")
	first, second := h.ownedClaim(h.ownedPod("db-1", "n3"), "n3"), h.ownedClaim(h.ownedPod("db-2", "n3"), "n3")
	h.changeNode("n1", markToRemove)
	h.changeNode("n3", markToRemove)
	waittest.Until(t, "those of n3 are pinned", h.pinnedTo(first.Name, "n3"))
	waittest.Until(t, "both", h.pinnedTo(second.Name, "n3"))
	if pv := h.pv(moves.Name); pv.Spec.NodeAffinity != nil {
		t.Errorf("it fits on n2, and is pinned: %v", pv.Spec.NodeAffinity)
	}
	// Both nodes were judged together. Now n1 lacks an alternative.
	h.changeNode("n2", cordon)
	h.changeNode("n3", func(n *v1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "example.com/gpu", Effect: v1.TaintEffectNoSchedule})
	})
	waittest.Until(t, "that of n1 is pinned", h.pinnedTo(moves.Name, "n1"))
	waittest.Until(t, "three are counted", func() bool { return h.pinnedFor("full") == 3 })
}

func (h *harness) pinnedFor(reason string) (count float64) {
	h.t.Helper()
	for _, family := range must.Get(h.c.o.Registerer.(*prometheus.Registry).Gather())(h.t) {
		for _, m := range family.GetMetric() {
			if family.GetName() == "carve_controller_volumes_pinned_total" && m.GetLabel()[0].GetValue() == reason {
				count += m.GetCounter().GetValue()
			}
		}
	}
	return count
}

func TestMovableVolumesAreNotPinnedWhileNodesConnect(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.pinGrace, c.core.shortFor = time.Millisecond, time.Hour })
	h.node("n1", gib)
	h.node("n2", 0) // its agent is not connected
	h.class("carve", movable)
	h.run()
	pv := h.ownedClaim(h.ownedPod("db-0", "n1"), "n1")
	h.changeNode("n1", markToRemove)
	later := h.ownedClaim(h.ownedPod("db-1", ""), "n1")
	waittest.Until(t, "a volume is pinned for another reason", h.pinnedTo(later.Name, "n1"))
	if now := h.pv(pv.Name); now.Spec.NodeAffinity != nil {
		t.Errorf("pinned: %v", now.Spec.NodeAffinity)
	}
}
