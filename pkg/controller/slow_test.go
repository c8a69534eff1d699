package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
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

func TestGrowthsOnANodeThatDoesNotAnswerHoldUpNoOthers(t *testing.T) {
	h := newHarness(t, withFewWorkers)
	slow, quick := h.node("slow", 100*gib), h.node("quick", gib)
	h.class("carve", expandable)
	asked := &heldCalls{release: make(chan struct{})}
	slow.SetHooks(lvmdfake.Hooks{BeforeExpand: func(ctx context.Context, _ *lvmdv1.ExpandVolumeRequest) error {
		return asked.hold(ctx)
	}})
	h.run()
	for i := range more {
		h.claim(fmt.Sprintf("slow-%d", i), "slow", nil)
	}
	h.claim("quick", "quick", func(c *v1.PersistentVolumeClaim) { c.Namespace = "other" })
	for i := range more {
		waittest.Until(t, "claims on the slow node are bound", h.bound(fmt.Sprintf("slow-%d", i)))
	}
	waittest.Until(t, "the claim on the other node is bound", func() bool {
		claim := must.Get(h.client.CoreV1().PersistentVolumeClaims("other").Get(t.Context(), "quick", metav1.GetOptions{}))(t)
		return claim.Status.Phase == v1.ClaimBound
	})
	for i := range more {
		h.grow(fmt.Sprintf("slow-%d", i), "200Mi")
	}
	waittest.Until(t, "the slow node is asked", func() bool { return asked.count.Load() > 0 })
	h.growIn("other", "quick", "200Mi")
	waittest.Until(t, "the volume on the other node has grown", func() bool { return quick.Volumes()["pvc-uid-quick"].GetSizeBytes() == 200*mib })
	waited := asked.count.Load()
	close(asked.release)
	waittest.Until(t, "what was refused is tried again", func() bool { return asked.count.Load() > waited })
}

func TestSnapshotsOnANodeThatDoesNotAnswerTakeAShareOfTheWorkers(t *testing.T) {
	h := newHarness(t)
	slow, quick := h.thinNode("slow", 4*gib), h.thinNode("quick", gib)
	h.class("carve", nil)
	asked := &heldCalls{release: make(chan struct{})}
	slow.SetHooks(lvmdfake.Hooks{BeforeSnapshot: func(ctx context.Context, _ *lvmdv1.CreateSnapshotRequest) error {
		return asked.hold(ctx)
	}})
	h.run()
	h.boundVolume("slow", "slow")
	h.boundVolume("quick", "quick")
	library := h.c.snapshotter(t.Context())
	take := func(ctx context.Context, node *lvmdfake.Server, name, source, namespace string) error {
		_, _, _, _, _, err := library.CreateSnapshot(ctx, name, node.Volumes()["pvc-uid-"+source].GetId(), map[string]string{
			utils.PrefixedVolumeSnapshotNameKey: name, utils.PrefixedVolumeSnapshotNamespaceKey: namespace}, nil)
		return err
	}
	const share = snapshotWorkers / 16
	var taking sync.WaitGroup
	defer taking.Wait()
	for i := range share {
		taking.Go(func() {
			if err := take(t.Context(), slow, fmt.Sprintf("slow-%d", i), "slow", "default"); err != nil {
				t.Error(err)
			}
		})
	}
	defer close(asked.release)
	waittest.Until(t, "the slow node has its share", func() bool { return asked.count.Load() == share })
	limited, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := take(limited, slow, "one-more", "slow", "third"); status.Code(err) != codes.Aborted {
		t.Errorf("one more on the slow node: got %v, want Aborted", err)
	}
	must.Succeed(t, take(t.Context(), quick, "quick", "quick", "other"))
	if n := asked.count.Load(); n != share {
		t.Errorf("the slow node was asked %d times, want %d", n, share)
	}
}

func TestANodeAndANamespaceHaveAShareOfTheWorkers(t *testing.T) {
	s := newShares(64)
	var releases []func()
	take := func(node, namespace string, want codes.Code) {
		t.Helper()
		release, err := s.take(node, namespace)
		if status.Code(err) != want {
			t.Fatalf("node %s, namespace %q: got %v, want %v", node, namespace, err, want)
		}
		if err == nil {
			releases = append(releases, release)
		}
	}
	for i := range 8 {
		take(fmt.Sprintf("n%d", i%2), "greedy", codes.OK)
	}
	take("n0", "other", codes.Aborted)
	take("n0", "", codes.Aborted)
	take("n2", "greedy", codes.Aborted)
	take("n2", "other", codes.OK)
	releases[0]()
	releases = releases[1:]
	take("n2", "greedy", codes.OK)
	take("n0", "other", codes.OK)
	for _, release := range releases {
		release()
	}
	if len(s.nodes) > 0 || len(s.namespaces) > 0 {
		t.Errorf("left are %v and %v", s.nodes, s.namespaces)
	}
}
