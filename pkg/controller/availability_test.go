package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

func grace(d time.Duration) harnessOption {
	return func(c *Controller) { c.core.available.Grace = d }
}

func backoff(d time.Duration) harnessOption {
	return func(c *Controller) { c.core.available.Least, c.core.available.Most = d, d }
}

// failCreates makes creates fail while the returned switch is on.
func failCreates(node *lvmdfake.Server, code codes.Code, reason string) *atomic.Bool {
	failing := &atomic.Bool{}
	failing.Store(true)
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		if failing.Load() {
			return lvmdfake.Error(code, reason, "lvcreate failed")
		}
		return nil
	}})
	return failing
}

func (h *harness) unselected(name string) func() bool {
	return func() bool { return h.getClaim(name).Annotations[volume.AnnSelectedNode] == "" }
}

func TestANodeThatIsAwayHasNoCapacityUntilItIsBack(t *testing.T) {
	h := newHarness(t, grace(50*time.Millisecond))
	var deletes atomic.Int32
	h.react("delete", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		deletes.Add(1)
		return false, nil, nil
	})
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	h.cutOff("n1")
	waittest.Until(t, "no capacity is published for n1", h.capacityIs("n1", 0))
	if n := len(h.c.core.available.HeldBack(cluster.CauseAway)); n != 1 {
		t.Errorf("%v nodes are held back because they are away", n)
	}
	if free, ok := h.c.core.ledger.FreeSpace("n1", ""); !ok || free.Available != 0 {
		t.Errorf("the controller would place on it: %+v", free)
	}
	h.attach(node, "n1")
	waittest.Until(t, "n1 is published again", h.capacityIs("n1", gib))
	if n := deletes.Load(); n != 0 {
		t.Errorf("its object was deleted %d times", n)
	}
	if n := len(h.c.core.available.HeldBack(cluster.CauseAway)); n != 0 {
		t.Errorf("%v nodes are still held back", n)
	}
}

func TestANodeIsAwayThatNeverConnectedToTheNewLeader(t *testing.T) {
	before := newHarness(t)
	before.node("n1", gib)
	before.class("carve", nil)
	before.run()
	waittest.Until(t, "n1 is published", before.capacityIs("n1", gib))
	before.stop()
	h := newHarnessOn(t, before.client, grace(50*time.Millisecond))
	h.run()
	waittest.Until(t, "no capacity is published for n1", h.capacityIs("n1", 0))
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(t, "n1 is published again", h.capacityIs("n1", gib))
}

func TestAReconnectWithinTheGraceChangesNoCapacity(t *testing.T) {
	h := newHarness(t, grace(time.Hour))
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	var writes atomic.Int32
	h.react("update", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		writes.Add(1)
		return false, nil, nil
	})
	for range 3 {
		h.cutOff("n1")
		h.attach(node, "n1")
	}
	node.Resize("local", 2*gib) // the next write must show this
	waittest.Until(t, "n1 has grown", h.capacityIs("n1", 2*gib))
	if n := writes.Load(); n != 1 {
		t.Errorf("capacity was written %d times for one change", n)
	}
}

func TestANodeOnWhichCreatesFailIsNotOfferedAgainAtOnce(t *testing.T) {
	for name, way := range map[string]struct {
		code   codes.Code
		reason string
	}{
		"LVM fails":         {codes.Internal, names.ReasonCommandFailed},
		"a disk is missing": {codes.Unavailable, names.ReasonDeviceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, backoff(time.Hour))
			node := h.node("n1", gib)
			h.class("carve", nil)
			failing := failCreates(node, way.code, way.reason)
			h.run()
			waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
			h.claim("c", "n1", nil)
			waittest.Until(t, "the claim is released", h.unselected("c"))
			// At that instant: the scheduler must see it before the claim.
			if !h.capacityIs("n1", 0)() {
				t.Fatalf("published %v when the claim was released", h.capacity("n1").Capacity)
			}
			h.event(cluster.ReasonHeldBack, "local", "lvcreate failed")
			if n := len(h.c.core.available.HeldBack(cluster.CauseFailing)); n != 1 {
				t.Errorf("%v nodes are held back for failures", n)
			}
			failing.Store(false)
			h.claim("d", "n1", nil) // its class was changed by hand, say
			waittest.Until(t, "claim is bound", h.bound("d"))
			waittest.Until(t, "a success restores the capacity", h.capacityIs("n1", gib-100*mib))
			h.event(cluster.ReasonClassRecovered, "device class local recovered from: CapacityHeldBack")
		})
	}
}

func TestANodeIsOfferedAgainAfterItsBackOff(t *testing.T) {
	h := newHarness(t, backoff(50*time.Millisecond))
	node := h.node("n1", gib)
	h.class("carve", nil)
	failCreates(node, codes.Internal, names.ReasonCommandFailed)
	h.run()
	h.claim("c", "n1", nil)
	h.event(cluster.ReasonHeldBack, "local")
	waittest.Until(t, "the claim is released", h.unselected("c"))
	waittest.Until(t, "n1 is offered again", h.capacityIs("n1", gib))
}

func TestWhatIsNotTheNodesFaultHoldsNothingBack(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	node := h.node("n1", gib)
	h.class("carve", nil)
	failCreates(node, codes.ResourceExhausted, names.ReasonNoSpace)
	h.run()
	for _, name := range []string{"a", "b", "c", "d"} {
		h.claim(name, "n1", nil)
		waittest.Until(t, "the claim is released", h.unselected(name))
	}
	if n := len(h.c.core.available.HeldBack(cluster.CauseFailing)); n != 0 {
		t.Errorf("%v nodes are held back", n)
	}
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
}

// A claim that no node can serve must not hold back all of them in turn.
func TestAClaimThatFailsEverywhereHoldsOneNodeBack(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	nodes := []string{"n1", "n2", "n3"}
	for _, name := range nodes {
		failCreates(h.node(name, gib), codes.Internal, names.ReasonCommandFailed)
	}
	h.class("carve", nil)
	h.run()
	h.claim("c", "", nil)
	for _, name := range nodes {
		h.selectNode("c", name)
		waittest.Until(t, "the claim is released", h.unselected("c"))
	}
	if n := len(h.c.core.available.HeldBack(cluster.CauseFailing)); n != 1 {
		t.Errorf("%v nodes are held back", n)
	}
}

func TestImmediateBindingAvoidsNodesThatAreHeldBack(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	bad := h.node("n1", 8*gib)
	h.node("n2", gib)
	var asked atomic.Int32
	bad.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		asked.Add(1)
		return lvmdfake.Error(codes.Unavailable, names.ReasonDeviceMissing, "a disk is missing")
	}})
	h.class("carve", immediate)
	h.run()
	ask := func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnStorageProvisioner] = names.Driver }
	h.claim("first", "", ask)
	waittest.Until(t, "claim is bound", h.bound("first"))
	if n := asked.Load(); n != 1 {
		t.Errorf("the larger node was asked %d times for the first", n)
	}
	for _, name := range []string{"a", "b", "c"} {
		h.claim(name, "", ask)
		waittest.Until(t, "claim is bound", h.bound(name))
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the node was asked %d times, %d of them after it was held back", n, n-1)
	}
}

func TestTheNextLeaderKnowsWhatIsHeldBack(t *testing.T) {
	before := newHarness(t, backoff(time.Hour))
	node := before.node("n1", gib)
	before.class("carve", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "local"} })
	failCreates(node, codes.Unavailable, names.ReasonDeviceMissing)
	before.run()
	waittest.Until(t, "n1 is published", before.capacityIs("n1", gib))
	before.claim("c", "n1", nil)
	waittest.Until(t, "n1 is held back", before.capacityIs("n1", 0))
	before.stop()
	h := newHarnessOn(t, before.client)
	h.run()
	again := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	failCreates(again, codes.Unavailable, names.ReasonDeviceMissing)
	h.attach(again, "n1")
	h.leader()
	if until := h.c.core.available.HeldUntil("n1", "local"); until.IsZero() {
		t.Error("it forgot that n1 is held back")
	}
	if free, ok := h.c.core.ledger.FreeSpace("n1", "local"); !ok || free.Available != 0 {
		t.Errorf("it would place on n1: %+v", free)
	}
}

func TestLeadingAgainForgetsHoldsThatAreOver(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "the controller sees that n1 is published", func() bool { return len(cluster.List(h.c.core.Capacities)) == 1 })
	h.stop()
	h.c.core.available.Failed("n1", "local", time.Now(), true) // while it led, and another leader ended it
	h.c.adoptHolds()
	if until := h.c.core.available.HeldUntil("n1", "local"); !until.IsZero() {
		t.Errorf("n1 is held back until %v, want not at all", until)
	}
}

// mkfs rejects the parameters of one StorageClass, while another one is valid.
func TestSettingsThatNoNodeCanUseAreHeldAgainstNone(t *testing.T) {
	for _, reason := range []string{names.ReasonFormatRefused, names.ReasonInvalidField} {
		t.Run(reason, func(t *testing.T) {
			h := newHarness(t)
			failing := failCreates(h.node("n1", gib), codes.InvalidArgument, reason)
			h.class("carve", nil)
			h.run()
			for i := range 2 * cluster.FailuresToHold {
				h.claim(fmt.Sprintf("bad-%d", i), "n1", nil)
				h.event("Warning ProvisioningFailed", "node n1: lvcreate failed")
			}
			if until := h.c.core.available.HeldUntil("n1", "local"); !until.IsZero() {
				t.Error("n1 is held back")
			}
			failing.Store(false)
			h.claim("good", "n1", nil)
			waittest.Until(t, "the volume of the good claim is made", h.bound("good"))
		})
	}
}
