package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	few = 4
	// more is more than there are workers.
	more = 3 * few
)

// heldCalls counts calls, and holds them until release is closed.
type heldCalls struct {
	count   atomic.Int32
	release chan struct{}
}

func (h *heldCalls) hold(ctx context.Context) error {
	h.count.Add(1)
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func withFewWorkers(c *Controller) { c.core.workers = few }

func TestClaimsOfANodeThatDoesNotAnswerHoldUpNoOthers(t *testing.T) {
	h := newHarness(t, withFewWorkers)
	slow := h.node("slow", 100*gib)
	h.node("quick", gib)
	h.class("carve", nil)
	asked := &heldCalls{release: make(chan struct{})}
	slow.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
		return asked.hold(ctx)
	}})
	h.run()
	for i := range more {
		h.claim(fmt.Sprintf("slow-%d", i), "slow", nil)
	}
	waittest.Until(t, "the slow node is asked for all of its volumes", func() bool { return asked.count.Load() >= more }, func() any { return asked.count.Load() })
	h.claim("quick", "quick", nil)
	waittest.Until(t, "a claim on the other node is bound", h.bound("quick"))
	close(asked.release)
	waittest.Until(t, "the slow node's claims are bound", func() bool { return len(slow.Volumes()) == more && h.volumes() == more+1 })
}

func TestDeletionsOnANodeThatDoesNotAnswerHoldUpNoOthers(t *testing.T) {
	h := newHarness(t, withFewWorkers)
	slow, quick := h.node("slow", 100*gib), h.node("quick", gib)
	h.class("carve", nil)
	h.run()
	for i := range more {
		h.claim(fmt.Sprintf("slow-%d", i), "slow", nil)
	}
	h.claim("quick", "quick", nil)
	for i := range more {
		waittest.Until(t, "claims on the slow node are bound", h.bound(fmt.Sprintf("slow-%d", i)))
	}
	waittest.Until(t, "the claim on the other node is bound", h.bound("quick"))
	asked := &heldCalls{release: make(chan struct{})}
	slow.SetHooks(lvmdfake.Hooks{BeforeDelete: func(ctx context.Context, _ *lvmdv1.DeleteVolumeRequest) error {
		return asked.hold(ctx)
	}})
	for i := range more {
		h.deleteClaim(fmt.Sprintf("slow-%d", i))
	}
	waittest.Until(t, "the slow node is asked for all of its deletions", func() bool { return asked.count.Load() >= more }, func() any { return asked.count.Load() })
	h.deleteClaim("quick")
	waittest.Until(t, "the volume on the other node is deleted", func() bool { return len(quick.Volumes()) == 0 })
	close(asked.release)
	waittest.Until(t, "the slow node's volumes are deleted", func() bool { return len(slow.Volumes()) == 0 && h.volumes() == 0 })
}
