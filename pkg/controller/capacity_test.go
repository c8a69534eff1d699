package controller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) capacities() int {
	list := must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").List(context.Background(), metav1.ListOptions{}))(h.t)
	return len(list.Items)
}

func TestEveryNodeAndClassHasOneCapacityObject(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.class("other", func(c *storagev1.StorageClass) { c.Provisioner = "other.csi" })
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	c := h.capacity("n1")
	if c.Labels[names.LabelManagedBy] != names.ManagedBy || c.Labels[capacity.LabelDriver] != names.Driver || c.Labels[capacity.LabelManager] == "" ||
		c.NodeTopology.MatchLabels[names.TopologyNode] != "n1" || c.StorageClassName != "carve" {
		t.Errorf("object %+v", c)
	}
	h.node("n2", 2*gib)
	h.class("second", nil)
	waittest.Until(h.t, "there are four objects", func() bool { return h.capacities() == 4 })
}

func TestCapacityFollowsReservationsAndVolumes(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	entered, release := make(chan struct{}), make(chan struct{})
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		close(entered)
		<-release
		return nil
	}})
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	h.claim("c", "n1", nil)
	<-entered
	waittest.Until(h.t, "the reservation is published before the volume exists", h.capacityIs("n1", gib-100*mib))
	close(release)
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if !h.capacityIs("n1", gib-100*mib)() {
		t.Errorf("published %v with one volume of 100 MiB", h.capacity("n1").Capacity)
	}
	must.Succeed(t, h.client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "c", metav1.DeleteOptions{}))
	h.released("pvc-uid-c")
	waittest.Until(h.t, "the space is back", h.capacityIs("n1", gib))
}

func TestCapacityHealsItself(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	api := h.client.StorageV1().CSIStorageCapacities("carve-system")
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	edited := h.capacity("n1").DeepCopy()
	edited.Capacity = resource.NewQuantity(5, resource.BinarySI)
	delete(edited.Labels, capacity.LabelDriver)
	must.Get(api.Update(t.Context(), edited, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "the edit is undone", func() bool {
		return h.capacityIs("n1", gib)() && h.capacity("n1").Labels[capacity.LabelDriver] == names.Driver
	})
	must.Succeed(t, api.Delete(t.Context(), edited.Name, metav1.DeleteOptions{}))
	waittest.Until(h.t, "it is made again", h.capacityIs("n1", gib))
	stray := edited.DeepCopy()
	stray.Name, stray.ResourceVersion = "stray", ""
	must.Get(api.Create(t.Context(), stray, metav1.CreateOptions{}))(t)
	waittest.Until(h.t, "a stray object with our label is removed", func() bool { return h.capacities() == 1 && h.capacity("n1") != nil })
}

// The node with the older object returns later: at every moment it has an object.
func TestCapacityUnderAnotherNameIsRenamed(t *testing.T) {
	h := newHarness(t)
	h.class("carve", nil)
	h.node("n1", 0)
	old := capacity.Describe(capacity.Key{Node: "n1", Class: "carve"}, scheduler.FreeSpace{Available: 300 * mib, MaximumVolume: 200 * mib})
	old.Name, old.Namespace = "carve-aeaqcaibaeaqcaibaeaqcaibae", "carve-system"
	objects := h.client.StorageV1().CSIStorageCapacities("carve-system")
	must.Get(objects.Create(t.Context(), old, metav1.CreateOptions{}))(t)
	gvr := storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
	h.react("delete", gvr.Resource, func(k8stesting.Action) (bool, runtime.Object, error) {
		object, err := h.client.Tracker().Get(gvr, "carve-system", capacity.Key{Node: "n1", Class: "carve"}.ObjectName())
		if c, ok := object.(*storagev1.CSIStorageCapacity); err != nil || !ok || c.Capacity.Value() != 300*mib || c.MaximumVolumeSize.Value() != 200*mib {
			t.Errorf("before the object of the earlier version is removed: want another one that says the same, got %v, %v", object, err)
		}
		return false, nil, nil
	})
	h.run()
	waittest.Until(h.t, "there is one object, under the new name", func() bool { return h.capacities() == 1 && h.capacity("n1") != nil })
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(h.t, "what the node reports is published", h.capacityIs("n1", gib))
}

// The deletion may be seen before the answer to the write.
func TestCapacityIsMadeAgainThatWasDeletedBeforeItsWriteWasAnswered(t *testing.T) {
	for _, verb := range []string{"create", "update"} {
		t.Run(verb, func(t *testing.T) {
			var log logtest.Recorder
			h := newHarness(t, loggedTo(&log))
			node := h.node("n1", gib)
			h.class("carve", nil)
			objects := h.client.Tracker()
			gvr := storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
			var deleted atomic.Bool
			h.react(verb, gvr.Resource, func(action k8stesting.Action) (bool, runtime.Object, error) {
				if deleted.Load() {
					return false, nil, nil
				}
				written := action.(k8stesting.CreateAction).GetObject().(*storagev1.CSIStorageCapacity)
				var err error
				if verb == "create" {
					err = objects.Create(gvr, written, written.Namespace)
				} else {
					err = objects.Update(gvr, written, written.Namespace)
				}
				if err != nil {
					return true, nil, err
				}
				cached := func() bool {
					obj, ok, _ := h.c.core.Capacities.GetStore().GetByKey(written.Namespace + "/" + written.Name)
					return ok && obj.(*storagev1.CSIStorageCapacity).Capacity.Equal(*written.Capacity)
				}
				waittest.Until(h.t, "the cache has it", cached)
				if err := objects.Delete(gvr, written.Namespace, written.Name); err != nil {
					return true, nil, err
				}
				// The publisher sees the deletion before it logs this event.
				next := capacity.Describe(capacity.Key{Node: "n1", Class: "unknown"}, spaceOf(gib))
				next.Name, next.Namespace = "misnamed", written.Namespace
				if err := objects.Create(gvr, next, next.Namespace); err != nil {
					return true, nil, err
				}
				waittest.Until(h.t, "the next event is seen", func() bool {
					return len(log.Find(func(l logtest.Record) bool { return l.Attributes["object"] == next.Name })) > 0
				})
				deleted.Store(true)
				return true, written, nil
			})
			h.run()
			if verb == "update" {
				waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
				node.Resize("local", 2*gib)
			}
			waittest.Until(h.t, "it was deleted", deleted.Load)
			waittest.Until(h.t, "there is one again", func() bool { return h.capacities() == 1 })
		})
	}
}

func TestCapacityIsKeptWhileANodeIsAwayAndGoesWithItsNodeObject(t *testing.T) {
	h := newHarness(t)
	var deletes atomic.Int32
	h.react("delete", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		deletes.Add(1)
		return false, nil, nil
	})
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	h.cutOff("n1")
	edited := h.capacity("n1").DeepCopy()
	if edited == nil {
		t.Fatal("the capacity went with the connection")
	}
	edited.Capacity = resource.NewQuantity(5, resource.BinarySI)
	if _, err := h.client.StorageV1().CSIStorageCapacities("carve-system").Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("the capacity went with the connection: %v", err)
	}
	waittest.Until(h.t, "an edit is undone", h.capacityIs("n1", gib))
	if n := deletes.Load(); n != 0 {
		t.Errorf("the capacity was deleted %d times while the node was only away", n)
	}
	must.Succeed(t, h.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	waittest.Until(h.t, "the capacity is gone with the Node", func() bool { return h.capacity("n1") == nil })
}

func TestCapacityIsTakenAwayWhileANodeIsOutOfService(t *testing.T) {
	for name, away := range map[string]bool{"and away": true, "and connected": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", nil)
			h.run()
			waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
			if away {
				h.cutOff("n1")
			}
			h.taint("n1", v1.TaintNodeOutOfService)
			waittest.Until(h.t, "the capacity is gone", func() bool { return h.capacity("n1") == nil })
			h.untaint("n1")
			waittest.Until(h.t, "the capacity is back", h.capacityIs("n1", gib))
		})
	}
}

func TestCapacityGoesWithItsClassOnTheNodeAndInTheCluster(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.class("second", nil)
	h.run()
	waittest.Until(h.t, "both are published", func() bool { return h.capacities() == 2 })
	must.Succeed(t, h.client.StorageV1().StorageClasses().Delete(t.Context(), "second", metav1.DeleteOptions{}))
	waittest.Until(h.t, "one is left", func() bool { return h.capacities() == 1 && h.capacity("n1") != nil })
	node.Resize("local", 0)
	waittest.Until(h.t, "none is left", func() bool { return h.capacities() == 0 })
	node.Resize("local", 2*gib)
	h.class("named", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "local"} })
	waittest.Until(h.t, "a class that comes back is published", func() bool { return h.capacities() == 1 })
}

func TestCapacityOfNodesThatDidNotConnectYetIsKept(t *testing.T) {
	h := newHarness(t)
	h.node("n1", 0)
	h.class("carve", nil)
	earlier := capacity.Describe(capacity.Key{Node: "n1", Class: "carve"}, spaceOf(5*gib))
	gone := capacity.Describe(capacity.Key{Node: "gone", Class: "carve"}, spaceOf(5*gib))
	for _, c := range []*storagev1.CSIStorageCapacity{earlier, gone} {
		must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").Create(t.Context(), c, metav1.CreateOptions{}))(t)
	}
	h.run()
	waittest.Until(h.t, "the one of a node that is gone is removed", func() bool { return h.capacities() == 1 })
	if !h.capacityIs("n1", 5*gib)() {
		t.Error("what an earlier run published was lost")
	}
}

func mustView(t *testing.T, h *harness, node string) *fleet.View {
	t.Helper()
	v, ok := h.c.core.Fleet.View(node)
	if !ok {
		t.Fatal("no view of " + node)
	}
	return v
}

// With the test's clock, delayed increases wait until the test advances it.
func TestCapacityIsWrittenOnlyWhenItChangesAndRisesAreGathered(t *testing.T) {
	var clock testClock
	clock.stop()
	h := newHarness(t, clock.set)
	n1, n2 := h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	var writes atomic.Int32 // for n1
	h.react("*", "csistoragecapacities", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "create" || a.GetVerb() == "update" {
			if written, ok := a.(k8stesting.CreateAction).GetObject().(*storagev1.CSIStorageCapacity); ok && capacity.TopologyNode(written) == "n1" {
				writes.Add(1)
			}
		}
		return false, nil, nil
	})
	wrote := func(want int32, what string) {
		t.Helper()
		if n := writes.Load(); n != want {
			t.Errorf("%s: %d writes, want %d", what, n, want)
		}
	}
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	waittest.Until(h.t, "n2 is published", h.capacityIs("n2", gib))
	wrote(1, "it is created")
	for i := range 10 {
		n1.Resize("local", gib+int64(i+1)*4*mib)
	}
	publisher := h.leader().publisher
	waittest.Until(h.t, "the rises are seen", func() bool {
		waits := slices.Contains(publisher.Waiting(), capacity.Key{Node: "n1", Class: "carve"})
		free, _ := h.c.core.ledger.FreeSpace("n1", "local")
		return waits && free.Available == gib+40*mib
	})
	n2.Resize("local", gib-4*mib)
	waittest.Until(h.t, "a fall is published at once", h.capacityIs("n2", gib-4*mib))
	wrote(1, "the rises wait")
	clock.advance(capacity.IncreaseDelay)
	waittest.Until(h.t, "the last rise is published", h.capacityIs("n1", gib+40*mib))
	for i := range 5 {
		h.c.nodeChanged(mustView(t, h, "n1"))
		n2.Resize("local", gib-int64(i+2)*4*mib)
		waittest.Until(h.t, "what came after is published", h.capacityIs("n2", gib-int64(i+2)*4*mib))
	}
	wrote(2, "ten rises are one write, and what did not change is none")
	n1.Resize("local", gib)
	waittest.Until(h.t, "n1's fall is published", h.capacityIs("n1", gib))
	wrote(3, "a fall")
}

func TestCapacityIsWrittenAgainAfterTheAPIServerFailed(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	var failures atomic.Int32
	h.react("create", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		if failures.Add(1) <= 3 {
			return true, nil, apierrors.NewInternalError(fmt.Errorf("try again"))
		}
		return false, nil, nil
	})
	h.run()
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
}
