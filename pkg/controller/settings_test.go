package controller

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) refuseFormats(node string) (refuses func(bool)) {
	h.t.Helper()
	return failCreates(h.node(node, gib), codes.InvalidArgument, names.ReasonFormatRefused).Store
}

// The scheduler must see no capacity of such a node for this StorageClass, and all for
// another.
func TestAClaimLeavesANodeWhoseDisksCannotHaveItsFileSystem(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	h.refuseFormats("n1")
	h.node("n2", gib)
	h.class("carve", nil)
	h.class("other", nil)
	h.run()
	h.claim("c", "n1", nil)
	h.event("Warning ProvisioningFailed", "node n1: lvcreate failed", "the scheduler is asked for another node")
	waittest.Until(t, "the claim has no node", h.unselected("c"))
	waittest.Until(t, "n1 has nothing for the StorageClass", h.capacityIs("n1", 0))
	other := capacity.Key{Node: "n1", Class: "other"}
	waittest.Until(t, "another StorageClass has all of n1", func() bool {
		object, err := h.client.StorageV1().CSIStorageCapacities("carve-system").Get(t.Context(), other.ObjectName(), metav1.GetOptions{})
		return err == nil && object.Capacity.Value() == gib
	})
	h.selectNode("c", "n2")
	waittest.Until(t, "the claim is bound", h.bound("c"))
	if node, _ := objects.NodeOf(h.pv("pvc-uid-c")); node != "n2" {
		t.Errorf("the volume is on %s", node)
	}
	if more := h.warnings(); len(more) > 0 {
		t.Errorf("more Events: %q", more)
	}
}

func TestANodeIsTriedAgainForAStorageClassThatItRefused(t *testing.T) {
	h := newHarness(t, backoff(time.Millisecond))
	refuses := h.refuseFormats("n1")
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	for range 2 {
		h.claim("c", "n1", nil)
		waittest.Until(t, "the claim has no node", h.unselected("c"))
		waittest.Until(t, "n1 is offered again", h.capacityIs("n1", gib))
		h.deleteClaim("c")
		waittest.Until(t, "it is forgotten", func() bool { return !h.leader().provisioner.Busy("uid-c") })
	}
	refuses(false)
	h.claim("d", "n1", nil)
	waittest.Until(t, "the claim is bound", h.bound("d"))
}

func TestAClaimWhoseFileSystemNoNodeCanHaveStays(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	h.refuseFormats("n1")
	refuses := h.refuseFormats("n2")
	cordoned := h.node("cordoned", gib)
	node, err := h.client.CoreV1().Nodes().Get(t.Context(), "cordoned", metav1.GetOptions{})
	if err == nil {
		node = node.DeepCopy()
		node.Spec.Unschedulable = true
		_, err = h.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "the controller knows", func() bool {
		node, err := h.c.core.NodeLister.Get("cordoned")
		return err == nil && node.Spec.Unschedulable
	})
	h.claim("c", "n1", nil)
	waittest.Until(t, "the claim has no node", h.unselected("c"))
	h.selectNode("c", "n2")
	h.event("Warning ProvisioningFailed", "node n2: lvcreate failed", "there is no other node to try", "make StorageClass carve again")
	if selected := h.getClaim("c").Annotations[volume.AnnSelectedNode]; selected != "n2" {
		t.Errorf("the selected node is %q", selected)
	}
	if h.c.core.available.Refuses("n2", "carve") {
		t.Error("n2 is held back, though there is no other node")
	}
	refuses(false)
	waittest.Until(t, "the claim is bound", h.bound("c"))
	if cordoned.Creates() > 0 {
		t.Error("a cordoned node was asked")
	}
}

func TestAClaimThatBindsAtOnceTriesAnotherNodeForItsFileSystem(t *testing.T) {
	h := newHarness(t)
	h.node("n2", gib)
	failCreates(h.node("n1", 2*gib), codes.InvalidArgument, names.ReasonFormatRefused) // has more free space
	h.class("carve", immediate)
	h.run()
	waittest.Until(t, "both nodes are known", func() bool { return h.c.core.Fleet.Connected() == 2 })
	h.claim("c", "", asked)
	waittest.Until(t, "the claim is bound", h.bound("c"))
	if node, _ := objects.NodeOf(h.pv("pvc-uid-c")); node != "n2" {
		t.Errorf("the volume is on %s", node)
	}
}
