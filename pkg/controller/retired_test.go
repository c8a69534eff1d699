package controller

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// withAgents puts an agent's Pod on each node, and holds nodes back and abandons them at once.
func (h *harness) withAgents(nodes ...string) {
	h.t.Helper()
	h.c.core.available.Grace, h.c.core.Losses.Agentless.Grace = time.Millisecond, time.Millisecond
	for _, node := range nodes {
		must.Get(h.client.CoreV1().Pods("carve-system").Create(h.t.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "agent-" + node}, Spec: v1.PodSpec{NodeName: node}}, metav1.CreateOptions{}))(h.t)
	}
	go h.c.agents.Run(h.t.Context())
	waittest.Until(h.t, "the agents are known", h.c.agents.Synced)
}

func (h *harness) retired(node string) func() bool {
	return func() bool {
		h.c.forgetNodes(h.t.Context())
		return h.capacity(node) == nil && h.c.heldBack(cluster.CauseAway) == 0
	}
}

func TestANodeThatIsToHaveNoAgentAnyMoreIsNotCutOff(t *testing.T) {
	h := newHarness(t)
	h.withAgents("n1", "n2")
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.leader()
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	h.cutOff("n1") // its agent crashed: its Pod exists
	waittest.Until(t, "n1 is held back", h.capacityIs("n1", 0))
	for range 3 {
		if h.retired("n1")() || h.c.heldBack(cluster.CauseAway) != 1 || h.c.core.Retired("n1") {
			t.Fatalf("%v nodes count as cut off while one's agent crashes", h.c.heldBack(cluster.CauseAway))
		}
	}
	must.Succeed(t, h.client.CoreV1().Pods("carve-system").Delete(t.Context(), "agent-n1", metav1.DeleteOptions{}))
	waittest.Until(t, "nothing is published for n1", h.retired("n1"))
	if _, known := h.c.core.Fleet.View("n1"); !known {
		t.Error("what n1 holds is not known any more")
	}
	h.attach(n1, "n1")
	waittest.Until(t, "n1 is published again when its agent connects", h.capacityIs("n1", gib))
}

func TestTheNextLeaderRemovesWhatIsPublishedForANodeThatIsToHaveNoAgent(t *testing.T) {
	h := newHarness(t)
	h.withAgents("n2")
	h.node("n1", 0)
	h.class("carve", nil)
	must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").Create(t.Context(),
		capacity.Describe(capacity.Key{Node: "n1", Class: "carve"}, spaceOf(gib)), metav1.CreateOptions{}))(t)
	h.run()
	h.leader()
	waittest.Until(t, "nothing is published for n1", h.retired("n1"))
}

// The DaemonSet may have been deleted by mistake.
func TestNodesCountAsCutOffWhileNoNodeHasAnAgent(t *testing.T) {
	h := newHarness(t)
	h.withAgents("n1")
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.leader()
	must.Succeed(t, h.client.CoreV1().Pods("carve-system").Delete(t.Context(), "agent-n1", metav1.DeleteOptions{}))
	h.cutOff("n1")
	waittest.Until(t, "n1 is held back", h.capacityIs("n1", 0))
	if h.retired("n1")(); h.c.heldBack(cluster.CauseAway) != 1 {
		t.Error("n1 does not count as cut off")
	}
}
