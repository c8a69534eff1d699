package controller

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	var lost atomic.Int32
	node.SetHooks(lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
		if lost.Add(1) <= 2 {
			return status.Error(codes.Unavailable, "the answer was lost")
		}
		return nil
	}})
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if node.Creates() != 1 || h.pv("pvc-uid-c").Spec.CSI.VolumeHandle != node.Volumes()["pvc-uid-c"].GetId() {
		t.Errorf("%d volumes were made", node.Creates())
	}
}

// The volume must be gone from the first node before the second is asked, and the
// PersistentVolume must name the second.
func TestAClaimThatMovesWhileACreateIsInFlightLeavesNothingBehind(t *testing.T) {
	h := newHarness(t)
	n1, n2 := h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	n1.SetHooks(lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
		return status.Error(codes.Unavailable, "the answer was lost")
	}})
	var early atomic.Bool
	n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		if len(n1.Volumes()) > 0 {
			early.Store(true)
		}
		return nil
	}})
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "volume is made on n1", func() bool { return len(n1.Volumes()) == 1 })
	h.selectNode("c", "n2")
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != "n2" {
		t.Errorf("pinned to %q", got)
	}
	if early.Load() || len(n1.Volumes()) != 0 {
		t.Error("n2 was asked while n1 still held the volume")
	}
}

func TestANodeWithACreateInFlightThatIsAwayKeepsTheClaimUntilItIsBackOrGone(t *testing.T) {
	for name, test := range map[string]func(*harness, *lvmdfake.Server){
		"it comes back": func(h *harness, n1 *lvmdfake.Server) {
			n1.SetHooks(lvmdfake.Hooks{})
			h.attach(n1, "n1")
		},
		"its Node object is deleted": func(h *harness, _ *lvmdfake.Server) { h.deleteNode("n1") },
		"it is out of service":       func(h *harness, _ *lvmdfake.Server) { h.taint("n1", v1.TaintNodeOutOfService) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1, n2 := h.node("n1", gib), h.node("n2", gib)
			h.class("carve", nil)
			n1.SetHooks(lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
				return status.Error(codes.Unavailable, "the answer was lost")
			}})
			h.run()
			h.claim("c", "n1", nil)
			waittest.Until(h.t, "volume is made on n1", func() bool { return len(n1.Volumes()) == 1 })
			h.net.Detach("n1")
			h.selectNode("c", "n2")
			h.event("Warning ProvisioningFailed", "a volume may have been left on node n1")
			if n2.Creates() != 0 || h.volumes() != 0 {
				t.Fatal("n2 was asked while n1 may hold the volume")
			}
			test(h, n1)
			waittest.Until(h.t, "claim is bound", h.bound("c"))
			if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != "n2" {
				t.Errorf("pinned to %q", got)
			}
		})
	}
}

func TestAClaimIsNeverRescheduledWhileItsCreateIsInFlightUnlessTheNodeIsLost(t *testing.T) {
	for name, lose := range losing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var skew atomic.Int64
			h := newHarness(t, skewedBy(&skew))
			n1 := h.node("n1", gib)
			h.class("carve", nil)
			entered := make(chan struct{}, 8)
			n1.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
				entered <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}})
			h.run()
			h.claim("c", "n1", nil)
			<-entered
			h.cutOff("n1")
			h.waitBeyondTimeout(&skew, "c", "Warning ProvisioningFailed", "may have made the volume already", v1.TaintNodeOutOfService)
			if h.rescheduled("c") {
				t.Fatal("the claim was rescheduled while the create is in flight")
			}
			lose(h, "n1")
			waittest.Until(h.t, "the claim is rescheduled", func() bool { return h.rescheduled("c") })
		})
	}
}

// An earlier process run may have sent the create to the selected node.
func TestAClaimThatSelectedANodeInAnEarlierRunIsInFlightThere(t *testing.T) {
	for name, test := range map[string]struct {
		moves bool // the scheduler chooses n2 instead
		then  func(*harness, *lvmdfake.Server)
		made  bool // by the earlier run
		node  string
	}{
		"the node comes and has nothing":                    {then: func(h *harness, n1 *lvmdfake.Server) { h.attach(n1, "n1") }, node: "n1"},
		"the node comes with the volume":                    {then: func(h *harness, n1 *lvmdfake.Server) { h.attach(n1, "n1") }, made: true, node: "n1"},
		"the node is lost":                                  {then: func(h *harness, _ *lvmdfake.Server) { h.deleteNode("n1") }},
		"the node is out of service":                        {then: func(h *harness, _ *lvmdfake.Server) { h.taint("n1", v1.TaintNodeOutOfService) }},
		"it moves, and the node comes and has nothing":      {moves: true, then: func(h *harness, n1 *lvmdfake.Server) { h.attach(n1, "n1") }, node: "n2"},
		"it moves, and the node comes with the volume":      {moves: true, then: func(h *harness, n1 *lvmdfake.Server) { h.attach(n1, "n1") }, made: true, node: "n2"},
		"it moves, and the node is lost":                    {moves: true, then: func(h *harness, _ *lvmdfake.Server) { h.deleteNode("n1") }, node: "n2"},
		"it moves, and the node is declared out of service": {moves: true, then: func(h *harness, _ *lvmdfake.Server) { h.taint("n1", v1.TaintNodeOutOfService) }, node: "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var skew atomic.Int64
			h := newHarness(t, skewedBy(&skew))
			h.node("n1", 0)
			n1, n2 := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), h.node("n2", gib)
			h.class("carve", nil)
			h.claim("c", "n1", nil)
			if test.made {
				r := must.Get(spec.ParseClaim(h.getClaim("c"), mustClass(t, h)))(t)
				must.Get(n1.CreateVolume(t.Context(), r.CreateVolume(h.getClaim("c"), "cluster")))(t)
			}
			h.run()
			h.leader()
			if test.moves {
				h.selectNode("c", "n2")
				h.event("Warning ProvisioningFailed", "a volume may have been left on node n1")
			} else {
				h.waitBeyondTimeout(&skew, "c", "Warning ProvisioningFailed", "node n1", "may have made the volume already")
			}
			if h.rescheduled("c") || n2.Creates() != 0 {
				t.Fatal("the claim was rescheduled, or another node asked, while a create may be in flight")
			}
			test.then(h, n1)
			if test.node == "" {
				waittest.Until(h.t, "the claim is rescheduled", func() bool { return h.rescheduled("c") })
				h.selectNode("c", "n2")
				test.node = "n2"
			}
			waittest.Until(h.t, "claim is bound", h.bound("c"))
			if got, _ := objects.NodeOf(h.pv("pvc-uid-c")); got != test.node {
				t.Errorf("the volume is on %q, want %q", got, test.node)
			}
			if test.node == "n1" && n1.Creates() != 1 || test.node == "n2" && len(n1.Volumes()) != 0 {
				t.Errorf("n1 made %d volumes and has %v", n1.Creates(), n1.Volumes())
			}
		})
	}
}

func TestANewLeaderWaitsForNoNodeThatItCanAsk(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	h.claim("c", "n1", nil)
	h.claim("gone-on", "n1", func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("5Gi")
	})
	h.run()
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	waittest.Until(h.t, "the other is rescheduled", func() bool { return h.rescheduled("gone-on") })
	for _, e := range h.warnings() {
		if strings.Contains(e, "may have") {
			t.Errorf("it counts as in flight: %s", e)
		}
	}
	if n1.Creates() != 1 {
		t.Errorf("%d volumes were made", n1.Creates())
	}
}

func TestANewRunOfTheControllerGoesOnWhereTheOldOneStopped(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	// An earlier run crashed before it wrote the PersistentVolume of one claim, and after it
	// wrote the other's.
	h.claim("made", "n1", nil)
	h.claim("written", "n1", nil)
	for _, name := range []string{"made", "written"} {
		r := must.Get(spec.ParseClaim(h.getClaim(name), mustClass(t, h)))(t)
		res := must.Get(node.CreateVolume(t.Context(), r.CreateVolume(h.getClaim(name), "cluster")))(t)
		if name == "written" {
			pv := provision.NewPersistentVolume(h.getClaim(name), mustClass(t, h), "n1", res.GetVolume(), "earlier")
			must.Get(h.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
		}
	}
	h.run()
	waittest.Until(h.t, "both are bound", func() bool { return h.bound("made")() && h.bound("written")() })
	if node.Creates() != 2 {
		t.Errorf("%d volumes were made, want the 2 that were there", node.Creates())
	}
}
