package controller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

func spaceOf(bytes int64) scheduler.FreeSpace {
	return scheduler.FreeSpace{Total: bytes, Available: bytes, MaximumVolume: bytes}
}

// released acts as the PV controller does after a claim's deletion.
func (h *harness) released(name string) {
	h.t.Helper()
	pv := h.pv(name).DeepCopy()
	if pv == nil {
		return // gone already
	}
	pv.Status.Phase = v1.VolumeReleased
	_, err := h.client.CoreV1().PersistentVolumes().UpdateStatus(context.Background(), pv, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		h.t.Fatal(err)
	}
}

func (h *harness) boundVolume(name, node string) *v1.PersistentVolume {
	h.t.Helper()
	h.claim(name, node, nil)
	waittest.Until(h.t, "claim is bound", h.bound(name))
	// Kubernetes' PV controller must handle a claim deleted before its volume was seen.
	waittest.Until(h.t, "its volume is seen", func() bool {
		_, err := h.c.core.VolumeLister.Get("pvc-uid-" + name)
		return err == nil
	})
	return h.pv("pvc-uid-" + name)
}

// inTurn gives the controller one worker each for claims and for volumes. Items of one
// namespace keep the order of their events.
func inTurn(c *Controller) { c.core.workers = 1 }

// passBy waits until the controller has deleted another volume. With inTurn, it has then
// handled all earlier changes. Work that waits for a clock is included only if the clock
// advanced before the change.
func (h *harness) passBy(node string) {
	h.t.Helper()
	h.passed++
	claim := h.claim(fmt.Sprintf("passing-%d", h.passed), "", nil)
	h.deleteClaim(claim.Name)
	pv := provision.NewPersistentVolume(claim, mustClass(h.t, h), node, &lvmdv1.Volume{Id: claim.Name, SizeBytes: gib}, "x")
	pv.Status.Phase = v1.VolumeReleased
	must.Get(h.client.CoreV1().PersistentVolumes().Create(h.t.Context(), pv, metav1.CreateOptions{}))(h.t)
	waittest.Until(h.t, "the passing volume is gone", func() bool { return h.pv(pv.Name) == nil })
}

func TestAReleasedVolumeIsDeletedFromItsNodeAndFromTheAPI(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.deleteClaim("c") // the controller marks its volume as released
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 })
	if len(node.Volumes()) != 0 {
		t.Error("the volume is still on the node")
	}
}

// The API server's watch repeatedly shows a deleted volume with its finalizer.
func TestAVolumeIsDeletedOnceWhileTheCacheShowsItAsItWas(t *testing.T) {
	h := newHarness(t, inTurn)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	volumes := v1.SchemeGroupVersion.WithResource("persistentvolumes")
	var writes atomic.Int32
	show := func() {
		obj := must.Get(h.client.Tracker().Get(volumes, "", "pvc-uid-c"))(t)
		pv, _ := obj.(*v1.PersistentVolume)
		pv = pv.DeepCopy()
		now := metav1.Now()
		pv.DeletionTimestamp = &now
		must.Succeed(t, h.client.Tracker().Update(volumes, pv, ""))
	}
	h.react("delete", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if one, ok := action.(clienttesting.DeleteAction); !ok || one.GetName() != "pvc-uid-c" {
			return false, nil, nil
		}
		writes.Add(1)
		show()
		return true, nil, nil
	})
	h.react("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if one, ok := action.(clienttesting.PatchAction); !ok || one.GetName() != "pvc-uid-c" || one.GetSubresource() != "" {
			return false, nil, nil
		}
		writes.Add(1)
		return true, nil, nil
	})
	h.deleteClaim("c")
	waittest.Until(t, "the volume is deleted", func() bool { return writes.Load() >= 2 && len(node.Volumes()) == 0 })
	for range 3 {
		show()
		h.passBy("n1")
	}
	if n := writes.Load(); n != 2 {
		t.Errorf("%d writes, want the deletion and the finalizer", n)
	}
}

func TestAReleasedVolumeUnderRetainIsKeptAndLosesTheFinalizer(t *testing.T) {
	h := newHarness(t, inTurn)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	pv := h.boundVolume("c", "n1").DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	must.Get(h.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "finalizer is gone", func() bool { return !slices.Contains(h.pv(pv.Name).Finalizers, cluster.Finalizer) })
	h.released(pv.Name)
	h.passBy("n1")
	if h.volumes() != 1 || len(node.Volumes()) != 1 {
		t.Error("a retained volume was deleted")
	}
	pv = h.pv(pv.Name).DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	pv.Status.Phase = v1.VolumeBound
	must.Get(h.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "finalizer is back", func() bool { return slices.Contains(h.pv(pv.Name).Finalizers, cluster.Finalizer) })
}

func TestAVolumeInUseIsDeletedOnceItIsNot(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	var tries atomic.Int32
	node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		if tries.Add(1) <= 2 {
			return lvmdfake.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "the volume is mounted")
		}
		return nil
	}})
	h.deleteClaim("c")
	h.released("pvc-uid-c")
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

func TestAVolumeOnANodeThatIsAwayIsDeletedWhenItComesBack(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.net.Detach("n1")
	h.deleteClaim("c")
	h.released("pvc-uid-c")
	h.event("Warning VolumeFailedDelete", "n1 is not connected")
	h.attach(node, "n1")
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

func TestReleasedVolumeOnNodeThatIsAwayIsNotPolled(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.cutOff("n1")
	var reads atomic.Int32 // one before each attempt
	h.react("get", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if get, ok := action.(clienttesting.GetAction); ok && get.GetName() == "pvc-uid-c" {
			reads.Add(1)
		}
		return false, nil, nil
	})
	h.deleteClaim("c")
	h.event("Warning VolumeFailedDelete", "n1 is not connected")
	time.Sleep(2 * time.Second)   // with pauses that grow from 0.2 s, there would be four attempts
	if n := reads.Load(); n > 2 { // the first, and one for the phase
		t.Errorf("%d attempts at a volume whose node is away, want one for each change of it", n)
	}
	h.attach(node, "n1")
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.pv("pvc-uid-c") == nil && len(node.Volumes()) == 0 })
}

func TestAVolumeOnANodeThatLeftTheClusterDoesNotHang(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.net.Detach("n1")
	h.deleteClaim("c")
	h.released("pvc-uid-c")
	h.event("Warning VolumeFailedDelete", "n1 is not connected")
	must.Succeed(t, h.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 })
}

func TestVolumesOfOthersAreLeftAlone(t *testing.T) {
	h := newHarness(t, inTurn)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	for name, change := range map[string]func(*v1.PersistentVolume){
		"other-driver":      func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.csi" },
		"other-provisioner": func(pv *v1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other.csi" },
		"local":             func(pv *v1.PersistentVolume) { pv.Spec.CSI = nil },
	} {
		claim := h.claim(name, "", nil)
		h.deleteClaim(name)
		pv := provision.NewPersistentVolume(claim, mustClass(t, h), "n1", &lvmdv1.Volume{Id: "cvx", SizeBytes: gib}, "x")
		pv.Name = name
		change(pv)
		pv.Status.Phase = v1.VolumeReleased
		must.Get(h.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
	}
	h.passBy("n1")
	if h.volumes() != 3 {
		t.Errorf("%d volumes are left of 3", h.volumes())
	}
}

// The PV controller may be far behind, and would make calls for each volume. The controller
// leaves a volume to it if the watch of volumes is behind that of claims.
func TestAVolumeWhoseClaimIsDeletedBeforeItIsBoundIsDeleted(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.pvController.Stop()
	h.claim("c", "n1", nil)
	waittest.Until(t, "the volume is in the cache", func() bool { _, err := h.c.core.VolumeLister.Get("pvc-uid-c"); return err == nil })
	h.deleteClaim("c")
	waittest.Until(t, "it is gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}
