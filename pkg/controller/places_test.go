package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// places is the limit of creates in flight to a node.
const places = 128

func shortCreateTimeout(c *Controller) { c.core.createTimeout = time.Second }

// occupiedNode is a node whose places other creates hold from fill until release.
type occupiedNode struct {
	h    *harness
	node string
	held *heldCalls
	// asked counts calls about the test's volume.
	asked atomic.Int32
}

func (h *harness) occupiedNode(name, volume string, create func() error) *occupiedNode {
	o := &occupiedNode{h: h, node: name, held: &heldCalls{release: make(chan struct{})}}
	wait := hold[*lvmdv1.CreateVolumeRequest](o.held)
	h.node(name, 100*gib).SetHooks(lvmdfake.Hooks{
		BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
			if r.GetName() != volume {
				return wait(ctx, r)
			}
			o.asked.Add(1)
			return create()
		},
		BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error { o.asked.Add(1); return nil },
	})
	return o
}

func (o *occupiedNode) fill(want int32) {
	o.h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	for i := range places {
		calls.Go(func() {
			_, _ = o.h.c.core.Fleet.CreateVolume(ctx, o.node, &lvmdv1.CreateVolumeRequest{
				Name: fmt.Sprint("other-", i), RequiredBytes: mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM})
		})
	}
	o.h.t.Cleanup(func() { cancel(); calls.Wait() })
	waittest.Until(o.h.t, "the places are taken", func() bool { return o.held.count.Load() >= want })
}

func (o *occupiedNode) release() { close(o.held.release) }

func TestAClaimThatWasNotSentToItsNodeLeavesIt(t *testing.T) {
	h := newHarness(t, shortCreateTimeout)
	n1 := h.occupiedNode("n1", "pvc-uid-c", func() error { return nil })
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.leader() // a new leader would not know whether n1 had been asked for an older claim
	n1.fill(places)
	h.claim("c", "n1", nil)
	h.event("Warning ProvisioningFailed", "node n1: the call was not sent", "nothing was done", "the scheduler is asked for another node")
	waittest.Until(t, "the claim is rescheduled", h.unselected("c"))
	h.selectNode("c", "n2")
	waittest.Until(t, "claim is bound", h.bound("c"))
	if on, _ := objects.NodeOf(h.pv("pvc-uid-c")); on != "n2" || n1.asked.Load() != 0 {
		t.Errorf("the volume is on %s, want n2; n1 was asked for it or to remove it %d times, want never", on, n1.asked.Load())
	}
}

func TestAClaimWhoseEarlierCreateIsInFlightStaysThoughTheNextIsNotSent(t *testing.T) {
	h := newHarness(t, shortCreateTimeout)
	entered, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n1 := h.occupiedNode("n1", "pvc-uid-c", func() error {
		var err error
		once.Do(func() {
			close(entered)
			<-answer
			err = status.Error(codes.Unavailable, "the answer was lost")
		})
		return err
	})
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	<-entered
	n1.fill(places - 1)
	close(answer)
	h.event("Warning ProvisioningFailed", "node n1: the call was not sent", "asking it again")
	if on := h.getClaim("c").Annotations[volume.AnnSelectedNode]; on != "n1" {
		t.Errorf("the claim left its node for %q, which may have made the volume", on)
	}
	n1.release()
	waittest.Until(t, "claim is bound", h.bound("c"))
}
