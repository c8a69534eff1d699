package controller

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) changeVolume(name string, change func(*v1.PersistentVolume)) {
	h.t.Helper()
	pv := h.pv(name).DeepCopy()
	change(pv)
	must.Get(h.client.CoreV1().PersistentVolumes().Update(h.t.Context(), pv, metav1.UpdateOptions{}))(h.t)
}

// The finalizer keeps the deleted volume.
func availableAndDeleted(pv *v1.PersistentVolume) {
	now := metav1.Now()
	pv.Spec.ClaimRef, pv.Status.Phase, pv.DeletionTimestamp = nil, v1.VolumeAvailable, &now
}

// unbindable waits until the volume is reserved for a UID that no claim has.
func (h *harness) unbindable(name string) {
	h.t.Helper()
	waittest.Until(h.t, "no claim can be bound to the volume", func() bool {
		pv := h.pv(name)
		return pv != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == pv.UID
	})
}

// heldVolume deletes the claim of a volume that its node keeps until free is called.
func (h *harness) heldVolume(node *lvmdfake.Server) (free func()) {
	h.t.Helper()
	var held atomic.Bool
	held.Store(true)
	node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		if held.Load() {
			return lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "not now")
		}
		return nil
	}})
	h.boundVolume("c", "n1")
	h.changeVolume("pvc-uid-c", func(pv *v1.PersistentVolume) { pv.UID = "uid-of-the-volume" })
	waittest.Until(h.t, "the volume is seen with it", func() bool { // otherwise the new UID makes it another volume
		pv, err := h.c.core.VolumeLister.Get("pvc-uid-c")
		return err == nil && pv.UID == "uid-of-the-volume"
	})
	h.deleteClaim("c")
	h.event("Warning VolumeFailedDelete", "not now")
	return func() { held.Store(false) }
}

func TestAVolumeThatWasMadeAvailableAndIsDeletedEnds(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	free := h.heldVolume(node)
	h.changeVolume("pvc-uid-c", availableAndDeleted)
	h.unbindable("pvc-uid-c")
	h.released("pvc-uid-c")
	free()
	waittest.Until(t, "volume and PersistentVolume are gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

func TestAVolumeThatIsReservedForAClaimAndDeletedEnds(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	free := h.heldVolume(node)
	h.changeVolume("pvc-uid-c", func(pv *v1.PersistentVolume) {
		availableAndDeleted(pv)
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "team", Name: "next"}
	})
	h.unbindable("pvc-uid-c")
	if ref := h.pv("pvc-uid-c").Spec.ClaimRef; ref.Namespace != "team" || ref.Name != "next" {
		t.Errorf("the volume is for claim %s/%s now", ref.Namespace, ref.Name)
	}
	h.released("pvc-uid-c")
	free()
	waittest.Until(t, "volume and PersistentVolume are gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

// The PV controller binds a claim to the available volume it names, even during its deletion.
func TestAnAvailableVolumeThatAClaimNamesIsKeptWithAnEvent(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	free := h.heldVolume(node)
	h.claim("next", "", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-uid-c" })
	waittest.Until(t, "the claim is seen", func() bool { return h.c.core.Claim("uid-next") != nil })
	h.changeVolume("pvc-uid-c", availableAndDeleted)
	h.event("Warning VolumeFailedDelete", "claim default/next names", "delete the claim")
	if len(node.Volumes()) != 1 || h.pv("pvc-uid-c").Spec.ClaimRef != nil {
		t.Fatalf("the node has %d volumes, the volume is for %v", len(node.Volumes()), h.pv("pvc-uid-c").Spec.ClaimRef)
	}
	free()
	h.deleteClaim("next")
	h.unbindable("pvc-uid-c")
	h.released("pvc-uid-c")
	waittest.Until(t, "volume and PersistentVolume are gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

func TestAnAvailableVolumeThatIsDeletedUnderRetainStaysOnItsNode(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.heldVolume(node)
	h.changeVolume("pvc-uid-c", func(pv *v1.PersistentVolume) {
		availableAndDeleted(pv)
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	})
	waittest.Until(t, "the finalizer is gone", func() bool {
		return !slices.Contains(h.pv("pvc-uid-c").Finalizers, cluster.Finalizer)
	})
	if len(node.Volumes()) != 1 {
		t.Error("the volume is gone from its node")
	}
}

// The PV controller sets the phase Failed for volumes under Delete without a known
// provisioner.
func TestAFailedVolumeThatIsDeletedEnds(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	free := h.heldVolume(node)
	h.changeVolume("pvc-uid-c", func(pv *v1.PersistentVolume) {
		now := metav1.Now()
		pv.Status.Phase, pv.DeletionTimestamp = v1.VolumeFailed, &now
	})
	free()
	waittest.Until(t, "volume and PersistentVolume are gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}
