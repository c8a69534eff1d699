package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// newBound returns two nodes; the first has the volume of the bound claim c.
func newBound(t *testing.T) (h *harness, node, impostor *lvmdfake.Server) {
	t.Helper()
	h = newHarness(t)
	node, impostor = h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	return h, node, impostor
}

func answersWith(node *lvmdfake.Server, holder, id string) {
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(_ context.Context, r *lvmdv1.CreateVolumeRequest) error {
		if r.GetName() != holder {
			node.Put(&lvmdv1.Volume{Id: id, Name: r.GetName(), DeviceClass: "local", SizeBytes: r.GetRequiredBytes(),
				State: lvmdv1.VolumeState_VOLUME_STATE_READY, Mode: r.GetMode(), FsType: r.GetFsType()})
		}
		return nil
	}})
}

// stolen makes impostor report node's volume of that name, and waits until the controller
// knows. A claim still in work would remove it there.
func (h *harness) stolen(node, impostor *lvmdfake.Server, name string) *lvmdv1.Volume {
	h.t.Helper()
	h.idle()
	vol := node.Volumes()[name]
	claimed := proto.CloneOf(vol)
	claimed.EmptiedAt = timestamppb.New(time.Now())
	claimed.Conditions = []*lvmdv1.Condition{{Type: "Degraded", Message: "so says another node"}}
	impostor.Put(claimed)
	for _, n := range []string{node.Node(), impostor.Node()} {
		waittest.Until(h.t, n+" reports the volume", func() bool {
			view, _ := h.c.core.Fleet.View(n)
			return view.Volumes[vol.GetId()] != nil
		})
	}
	return vol
}

func TestASnapshotIsTakenOnTheNodeThatThePersistentVolumeNames(t *testing.T) {
	h, node, impostor := newBound(t)
	vol := h.stolen(node, impostor, "pvc-uid-c")
	_, err := h.takeSnapshot("s", vol.GetId())
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node n1: only thin volumes have snapshots") {
		t.Errorf("got %v, want the refusal of n1, which the PersistentVolume names", err)
	}
	impostor.Put(&lvmdv1.Volume{Id: "unnamed", Name: "pvc-x", DeviceClass: "local"})
	waittest.Until(t, "a node reports a volume that no PersistentVolume names", func() bool { return len(h.c.core.Fleet.ReportsOf("unnamed")) == 1 })
	if _, _, _, _, _, err := h.c.snapshotter(t.Context(), noContents()).CreateSnapshot(t.Context(), "x", "unnamed", nil, nil); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

func TestOnlyItsOwnNodeSpeaksForAVolume(t *testing.T) {
	h, node, impostor := newBound(t)
	h.stolen(node, impostor, "pvc-uid-c")
	h.leader().auditor.Pass(t.Context())
	if heard := slices.DeleteFunc(h.warnings(), func(e string) bool {
		return !strings.Contains(e, cluster.ReasonVolumeUnhealthy) && !strings.Contains(e, cluster.ReasonVolumeEmptied)
	}); len(heard) > 0 {
		t.Errorf("users got Events of what another node says: %q", heard)
	}
	if pv := h.pv("pvc-uid-c"); pv.Annotations[names.AnnotationEmptied] != "" || pv.Status.Phase != v1.VolumeBound {
		t.Errorf("the PersistentVolume was changed for another node: %v, %s", pv.Annotations, pv.Status.Phase)
	}
}

func TestAVolumeIDOfAnotherNodeIsNoAnswerToACreate(t *testing.T) {
	h, node, impostor := newBound(t)
	id := node.Volumes()["pvc-uid-c"].GetId()
	answersWith(impostor, "pvc-uid-c", id)
	h.node("n3", gib)
	h.claim("d", "n2", nil)
	waittest.Until(t, "an Event names both nodes", func() bool {
		return slices.ContainsFunc(h.warnings(), func(e string) bool {
			return strings.Contains(e, `node n2 answered with volume id "`+id) && strings.Contains(e, `pvc-uid-c has on node "n1"`)
		})
	})
	if _, err := h.client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-d", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a PersistentVolume with the other's id: %v", err)
	}
	waittest.Until(t, "the claim is rescheduled", h.unselected("d"))
	if h.c.core.available.HeldUntil("n2", "local").IsZero() {
		t.Error("the node that answered with the other's id is offered on")
	}
	h.selectNode("d", "n3")
	waittest.Until(t, "another node has the volume", func() bool { return h.pv("pvc-uid-d") != nil })
	if on, _ := objects.NodeOf(h.pv("pvc-uid-d")); on != "n3" {
		t.Errorf("the volume is on %s, want it on the node that was selected next", on)
	}
}

func TestAnotherVolumeIsNoAnswerToACreate(t *testing.T) {
	for what, test := range map[string]struct {
		answer func(*lvmdv1.Volume)
		event  string
	}{
		"another name": {func(v *lvmdv1.Volume) { v.Name = "pvc-other" },
			`node n1 answered with volume "pvc-other" of 100Mi, asked for volume "pvc-uid-c" of 100Mi`},
		"too small": {func(v *lvmdv1.Volume) { v.SizeBytes /= 2 },
			`node n1 answered with volume "pvc-uid-c" of 50Mi, asked for volume "pvc-uid-c" of 100Mi`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1 := h.node("n1", gib)
			n1.SetHooks(lvmdfake.Hooks{Answer: test.answer})
			h.node("n2", gib)
			h.class("carve", nil)
			h.run()
			h.claim("c", "n1", nil)
			h.event("Warning ProvisioningFailed", test.event, "the scheduler is asked for another node")
			waittest.Until(t, "the claim is rescheduled", h.unselected("c"))
			if h.c.core.available.HeldUntil("n1", "local").IsZero() {
				t.Error("the node that answered with another volume is offered on")
			}
			if pv := h.pv("pvc-uid-c"); pv != nil {
				t.Errorf("the answer was accepted: %+v", pv.Spec)
			}
			h.selectNode("c", "n2")
			waittest.Until(t, "claim is bound", h.bound("c"))
			if on, _ := objects.NodeOf(h.pv("pvc-uid-c")); on != "n2" {
				t.Errorf("the volume is on %s, want n2", on)
			}
			waittest.Until(t, "n1 has nothing of it", func() bool { return len(n1.Volumes()) == 0 })
		})
	}
}

func TestAnIDIsOneVolumesOnOneNode(t *testing.T) {
	h, n1, n2 := newBound(t)
	bound := n1.Volumes()["pvc-uid-c"].GetId()
	n1.Put(&lvmdv1.Volume{Id: "orphan", Name: "pvc-orphan", DeviceClass: "local"})
	n2.Put(&lvmdv1.Volume{Id: "inline", Name: "csi-inline", DeviceClass: "local", Owner: &lvmdv1.Owner{PodUid: "pod"}})
	for node, id := range map[string]string{"n1": "orphan", "n2": "inline"} {
		waittest.Until(t, id+" is reported", func() bool {
			view, _ := h.c.core.Fleet.View(node)
			return view.Volumes[id] != nil
		})
	}
	for _, step := range []struct{ node, name, id, holder string }{
		{"n1", "pvc-uid-c", bound, ""},
		{"n2", "pvc-uid-c", bound, `PersistentVolume pvc-uid-c has on node "n1"`},
		{"n1", "pvc-new", bound, `PersistentVolume pvc-uid-c has on node "n1"`},
		{"n1", "pvc-orphan", "orphan", ""},
		{"n2", "pvc-orphan", "orphan", `node n1 reports of volume "pvc-orphan"`},
		{"n1", "pvc-new", "orphan", `node n1 reports of volume "pvc-orphan"`},
		{"n1", "pvc-new", "inline", `node n2 reports of volume "csi-inline"`},
		{"n1", "pvc-new", "fresh", ""},
		{"n1", "pvc-new", "fresh", ""},
		{"n2", "pvc-new", "fresh", `node n1 answered with for volume "pvc-new"`},
		{"n1", "pvc-newer", "fresh", `node n1 answered with for volume "pvc-new"`},
		{"n1", "pvc-new", "", "is none"},
	} {
		err := h.c.core.ids.Accept(step.node, &lvmdv1.CreateVolumeRequest{Name: step.name}, &lvmdv1.Volume{Name: step.name, Id: step.id})
		var taken *cluster.IDTakenError
		if errors.As(err, &taken) != (step.holder != "") || taken != nil && taken.Holder != step.holder {
			t.Errorf("node %s answers for %s with %q: %v, want that %q", step.node, step.name, step.id, err, step.holder)
		}
	}
}

// Both creates are in flight before either answer arrives.
func TestOfTwoCreatesThatAreAnsweredWithOneIDOneIsRefused(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	const creates = 50
	var taken atomic.Int32
	var calls sync.WaitGroup
	for i := range creates {
		calls.Go(func() {
			name := fmt.Sprintf("pvc-%d", i)
			if h.c.core.ids.Accept("n1", &lvmdv1.CreateVolumeRequest{Name: name}, &lvmdv1.Volume{Name: name, Id: "same"}) == nil {
				taken.Add(1)
			}
		})
	}
	calls.Wait()
	if n := taken.Load(); n != 1 {
		t.Errorf("%d of %d volumes have one id", n, creates)
	}
}
