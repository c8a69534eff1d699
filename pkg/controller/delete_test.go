package controller

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

func roomOf(bytes int64) scheduler.Room {
	return scheduler.Room{Total: bytes, Available: bytes, MaximumVolume: bytes}
}

// released does what the PV controller does when a claim is gone.
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

// boundVolume makes a claim and its volume.
func (h *harness) boundVolume(name, node string) *v1.PersistentVolume {
	h.t.Helper()
	h.claim(name, node, nil)
	waittest.Until(h.t, "claim is bound", h.bound(name))
	return h.pv("pvc-uid-" + name)
}

func TestAReleasedVolumeIsDeletedFromItsNodeAndFromTheAPI(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.deleteClaim("c") // its volume is marked as released by us
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 })
	if len(node.Volumes()) != 0 {
		t.Error("the volume is still on the node")
	}
}

func TestWithoutCompletionAVolumeIsDeletedOnceThePVControllerReleasedIt(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.leader().deleter.completeRelease = false
	h.deleteClaim("c")
	time.Sleep(200 * time.Millisecond)
	if len(node.Volumes()) != 1 || h.pv("pvc-uid-c").Status.Phase != v1.VolumeBound {
		t.Error("the volume was not left to the PV controller")
	}
	h.released("pvc-uid-c")
	waittest.Until(h.t, "PersistentVolume is gone", func() bool { return h.volumes() == 0 && len(node.Volumes()) == 0 })
}

func TestAReleasedVolumeUnderRetainIsKeptAndLosesTheFinalizer(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	pv := h.boundVolume("c", "n1").DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	must.Get(h.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "finalizer is gone", func() bool { return !slices.Contains(h.pv(pv.Name).Finalizers, finalizer) })
	h.released(pv.Name)
	time.Sleep(100 * time.Millisecond)
	if h.volumes() != 1 || len(node.Volumes()) != 1 {
		t.Error("a retained volume was deleted")
	}
	pv = h.pv(pv.Name).DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	pv.Status.Phase = v1.VolumeBound
	must.Get(h.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "finalizer is back", func() bool { return slices.Contains(h.pv(pv.Name).Finalizers, finalizer) })
}

func TestAVolumeInUseIsDeletedOnceItIsNot(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	var tries atomic.Int32
	node.SetHooks(fakelvmd.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		if tries.Add(1) <= 2 {
			return fakelvmd.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "the volume is mounted")
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
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	for name, change := range map[string]func(*v1.PersistentVolume){
		"other-driver":      func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.csi" },
		"other-provisioner": func(pv *v1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other.csi" },
		"local":             func(pv *v1.PersistentVolume) { pv.Spec.CSI = nil },
	} {
		claim := h.claim(name, "", nil)
		pv := newPersistentVolume(claim, mustClass(t, h), "n1", &lvmdv1.Volume{Id: "cvx", SizeBytes: gib}, "x")
		pv.Name = name
		change(pv)
		pv.Status.Phase = v1.VolumeReleased
		must.Get(h.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
	}
	time.Sleep(200 * time.Millisecond)
	if h.volumes() != 3 {
		t.Errorf("%d volumes are left of 3", h.volumes())
	}
}

func TestOfAttemptsThatFailOnlySomeAreTold(t *testing.T) {
	for what, c := range map[string]struct {
		inUse bool
		want  []int
	}{
		"a volume in use":     {true, []int{5, 11, 17}},
		"a node that refuses": {false, []int{0, 1, 2, 3, 4, 5, 11, 17}},
	} {
		var told []int
		for failures := range 20 {
			if worthTelling(failures, c.inUse) {
				told = append(told, failures)
			}
		}
		if !slices.Equal(told, c.want) {
			t.Errorf("%s: told after %v failures, want %v", what, told, c.want)
		}
	}
}
