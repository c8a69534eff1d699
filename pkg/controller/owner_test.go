package controller

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) deployment(uid types.UID) {
	h.t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "carve-controller", Namespace: "carve-system", UID: uid}}
	must.Get(h.client.AppsV1().Deployments("carve-system").Create(h.t.Context(), d, metav1.CreateOptions{}))(h.t)
}

// An empty uid stands for capacities without an owner.
func (h *harness) ownedBy(uid types.UID, want int) func() bool {
	return func() bool {
		list, err := h.client.StorageV1().CSIStorageCapacities("carve-system").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) == want && !slices.ContainsFunc(list.Items, func(c storagev1.CSIStorageCapacity) bool {
			if uid == "" {
				return len(c.OwnerReferences) > 0
			}
			return !slices.Equal(c.OwnerReferences, []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "carve-controller", UID: uid}})
		})
	}
}

func (h *harness) change(node string, f func(*storagev1.CSIStorageCapacity)) {
	h.t.Helper()
	api := h.client.StorageV1().CSIStorageCapacities("carve-system")
	c := must.Get(api.Get(h.t.Context(), capacity.Key{Node: node, Class: "carve"}.ObjectName(), metav1.GetOptions{}))(h.t)
	f(c)
	must.Get(api.Update(h.t.Context(), c, metav1.UpdateOptions{}))(h.t)
}

func TestCapacitiesBelongToTheDeployment(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", nil)
	// An earlier version gave them no owner.
	earlier := capacity.Describe(capacity.Key{Node: "n1", Class: "carve"}, spaceOf(gib))
	must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").Create(t.Context(), earlier, metav1.CreateOptions{}))(t)
	h.deployment("first")
	h.run()
	waittest.Until(h.t, "both belong to it", h.ownedBy("first", 2))
	h.change("n1", func(c *storagev1.CSIStorageCapacity) { c.OwnerReferences = nil })
	waittest.Until(h.t, "one that was taken from it belongs to it", h.ownedBy("first", 2))
	h.change("n2", func(c *storagev1.CSIStorageCapacity) {
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"})
	})
	waittest.Until(h.t, "one that was given another owner belongs to it alone", h.ownedBy("first", 2))
}

func TestCapacitiesAreNotMadeForADeploymentThatIsGone(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.deployment("first")
	h.run()
	waittest.Until(h.t, "n1 is published", h.ownedBy("first", 1))
	deployments, capacities := h.client.AppsV1().Deployments("carve-system"), h.client.StorageV1().CSIStorageCapacities("carve-system")
	must.Succeed(t, deployments.Delete(t.Context(), "carve-controller", metav1.DeleteOptions{}))
	waittest.Until(h.t, "that is known", func() bool {
		_, ended := h.c.core.owner.References()
		return ended
	})
	// As the garbage collector does.
	must.Succeed(t, capacities.Delete(t.Context(), capacity.Key{Node: "n1", Class: "carve"}.ObjectName(), metav1.DeleteOptions{}))
	node.Resize("local", 2*gib)
	waittest.Until(h.t, "n1 reports", func() bool {
		free, known := h.c.core.ledger.FreeSpace("n1", "local")
		return known && free.Available == 2*gib
	})
	if !h.ownedBy("", 0)() {
		t.Error("there is a capacity that nothing would take away")
	}
	h.deployment("second")
	waittest.Until(h.t, "n1 is published for the new one", h.ownedBy("second", 1))
	if !h.capacityIs("n1", 2*gib)() {
		t.Error("what is published is not what the node has")
	}
}

func TestCapacitiesOfAnInstallationWithoutTheDeploymentHaveNoOwner(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(h.t, "n1 is published", h.ownedBy("", 1))
}

// No node of a kind is empty: only the objects show the kind's capacity.
func TestWhatIsPublishedOfKindsFollowsTheDeployment(t *testing.T) {
	h := newHarness(t, withTemplates)
	h.class("carve", func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{names.AnnotationTemplateCapacity: "never-seen=3Gi"}
	})
	node := h.nodeOfKind("n1", "big", gib)
	h.deployment("first")
	h.run()
	waittest.Until(h.t, "the node and both kinds are published", h.ownedBy("first", 3))
	node.Put(&lvmdv1.Volume{Id: "by-hand", Name: "by-hand", DeviceClass: "local"})
	waittest.Until(h.t, "the node has a volume", func() bool { return len(mustView(t, h, "n1").Volumes) == 1 })

	deployments := h.client.AppsV1().Deployments("carve-system")
	must.Succeed(t, deployments.Delete(t.Context(), "carve-controller", metav1.DeleteOptions{}))
	waittest.Until(h.t, "that is known", func() bool {
		_, ended := h.c.core.owner.References()
		return ended
	})
	// As the garbage collector does, before it gets to the others.
	must.Succeed(t, h.client.StorageV1().CSIStorageCapacities("carve-system").Delete(t.Context(),
		capacity.Key{Template: "never-seen", Class: "carve"}.ObjectName(), metav1.DeleteOptions{}))
	h.deployment("second")
	waittest.Until(h.t, "all belong to the new one", h.ownedBy("second", 3))
	if h.template("big") != gib || h.template("never-seen") != 3*gib {
		t.Errorf("published of the kinds: %d and %d, want what was published before", h.template("big"), h.template("never-seen"))
	}
	// After an interrupted watch one Deployment seems to become the other.
	must.Get(deployments.Update(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "carve-controller", Namespace: "carve-system", UID: "third"}}, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "all belong to the third", h.ownedBy("third", 3))
}
