package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	few  = 4
	more = 3 * few
)

type heldCalls struct {
	count   atomic.Int32
	release chan struct{}
}

func hold[R any](h *heldCalls) func(context.Context, R) error {
	return func(ctx context.Context, _ R) error {
		h.count.Add(1)
		select {
		case <-h.release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type placed struct{ namespace, name, node string }

// slowSides return the slow claim i: on one node from many namespaces, or of one namespace on
// many nodes.
var slowSides = map[string]func(i int) placed{
	"a node":      func(i int) placed { return placed{fmt.Sprintf("tenant-%d", i), fmt.Sprintf("slow-%d", i), "slow"} },
	"a namespace": func(i int) placed { return placed{"tenant", fmt.Sprintf("slow-%d", i), fmt.Sprintf("slow-%d", i)} },
}

// contention has fewer workers than held calls. Calls for the quick claim are not held.
type contention struct {
	*harness
	held  *heldCalls
	slow  []placed
	quick placed
	nodes map[string]*lvmdfake.Server
}

func whileOneIsSlow(t *testing.T, hooks func(*heldCalls) lvmdfake.Hooks, test func(*testing.T, *contention)) {
	for name, side := range slowSides {
		t.Run(name, func(t *testing.T) {
			c := &contention{harness: newHarness(t, withFewWorkers), held: &heldCalls{release: make(chan struct{})},
				quick: placed{"other", "quick", "quick"}, nodes: map[string]*lvmdfake.Server{}}
			for i := range more {
				claim := side(i)
				c.slow = append(c.slow, claim)
				if c.nodes[claim.node] == nil {
					c.nodes[claim.node] = c.thinNode(claim.node, 100*gib)
					c.nodes[claim.node].SetHooks(hooks(c.held))
				}
			}
			c.nodes[c.quick.node] = c.thinNode(c.quick.node, gib)
			c.class("carve", expandable)
			c.run()
			test(t, c)
		})
	}
}

func withFewWorkers(c *Controller) { c.core.workers = few }

func (c *contention) make(claim placed) {
	c.t.Helper()
	c.claim(claim.name, claim.node, func(p *v1.PersistentVolumeClaim) { p.Namespace = claim.namespace })
}

// The controller's cache may get the volumes after the claims are bound.
func (c *contention) makeAll() {
	c.t.Helper()
	for _, claim := range append(c.slow, c.quick) {
		c.make(claim)
	}
	for _, claim := range append(c.slow, c.quick) {
		c.waitBound(claim)
		c.waitNamed(c.volume(claim).GetId())
	}
}

func (c *contention) waitBound(claim placed) {
	c.t.Helper()
	waittest.Until(c.t, claim.name+" is bound", func() bool {
		now, err := c.client.CoreV1().PersistentVolumeClaims(claim.namespace).Get(c.t.Context(), claim.name, metav1.GetOptions{})
		return err == nil && now.Status.Phase == v1.ClaimBound
	})
}

func (c *contention) delete(claim placed) {
	c.t.Helper()
	must.Succeed(c.t, c.client.CoreV1().PersistentVolumeClaims(claim.namespace).Delete(c.t.Context(), claim.name, metav1.DeleteOptions{}))
}

func (c *contention) volume(claim placed) *lvmdv1.Volume {
	return c.nodes[claim.node].Volumes()["pvc-uid-"+claim.name]
}

func (c *contention) waitHeld(calls int32) {
	c.t.Helper()
	waittest.Until(c.t, "calls are held", func() bool { return c.held.count.Load() >= calls }, func() any { return c.held.count.Load() })
}

func TestCreationsThatHangHoldUpNoOthers(t *testing.T) {
	whileOneIsSlow(t, func(h *heldCalls) lvmdfake.Hooks {
		return lvmdfake.Hooks{BeforeCreate: hold[*lvmdv1.CreateVolumeRequest](h)}
	}, func(_ *testing.T, c *contention) {
		for _, claim := range c.slow {
			c.make(claim)
		}
		c.waitHeld(more)
		c.make(c.quick)
		c.waitBound(c.quick)
		close(c.held.release)
		for _, claim := range c.slow {
			c.waitBound(claim)
		}
	})
}

func TestDeletionsThatHangHoldUpNoOthers(t *testing.T) {
	whileOneIsSlow(t, func(h *heldCalls) lvmdfake.Hooks {
		return lvmdfake.Hooks{BeforeDelete: hold[*lvmdv1.DeleteVolumeRequest](h)}
	}, func(t *testing.T, c *contention) {
		c.makeAll()
		for _, claim := range c.slow {
			c.delete(claim)
		}
		c.waitHeld(more)
		c.delete(c.quick)
		waittest.Until(t, "the other volume is deleted", func() bool { return c.volume(c.quick) == nil })
		close(c.held.release)
		waittest.Until(t, "the slow volumes are deleted", func() bool { return c.volumes() == 0 })
	})
}

func TestGrowthThatHangsHoldsUpNoOther(t *testing.T) {
	whileOneIsSlow(t, func(h *heldCalls) lvmdfake.Hooks {
		return lvmdfake.Hooks{BeforeExpand: hold[*lvmdv1.ExpandVolumeRequest](h)}
	}, func(t *testing.T, c *contention) {
		c.makeAll()
		for _, claim := range c.slow {
			c.growIn(claim.namespace, claim.name, "200Mi")
		}
		c.waitHeld(1)
		c.growIn(c.quick.namespace, c.quick.name, "200Mi")
		waittest.Until(t, "the other volume has grown", func() bool { return c.volume(c.quick).GetSizeBytes() == 200*mib })
		waited := c.held.count.Load()
		close(c.held.release)
		waittest.Until(t, "what was refused is tried again", func() bool { return c.held.count.Load() > waited })
	})
}

// The libraries for snapshots and attributes need a real API server. Here the test makes their
// calls; each side gets one of the workers.
func TestSnapshotsAndModificationsThatHangTakeAShareOfTheWorkers(t *testing.T) {
	for what, test := range map[string]struct {
		hooks   func(*heldCalls) lvmdfake.Hooks
		prepare func(*contention) (call func(context.Context, placed) error)
	}{
		"snapshots": {
			func(h *heldCalls) lvmdfake.Hooks {
				return lvmdfake.Hooks{BeforeSnapshot: hold[*lvmdv1.CreateSnapshotRequest](h)}
			},
			func(c *contention) func(context.Context, placed) error {
				library := c.c.snapshotter(c.t.Context(), noContents())
				return func(ctx context.Context, claim placed) error {
					_, err := c.snapshot(ctx, library, claim)
					return err
				}
			},
		},
		"deletions of snapshots": {
			func(h *heldCalls) lvmdfake.Hooks {
				return lvmdfake.Hooks{BeforeDeleteSnapshot: hold[*lvmdv1.DeleteSnapshotRequest](h)}
			},
			func(c *contention) func(context.Context, placed) error {
				contents, handles := noContents(), map[placed]string{}
				library := c.c.snapshotter(c.t.Context(), contents)
				for _, claim := range append(c.slow, c.quick) {
					handles[claim] = must.Get(c.snapshot(c.t.Context(), library, claim))(c.t)
					must.Succeed(c.t, contents.Add(contentOf(claim, handles[claim])))
				}
				return func(ctx context.Context, claim placed) error { return library.DeleteSnapshot(ctx, handles[claim], nil) }
			},
		},
		"modifications": {
			func(h *heldCalls) lvmdfake.Hooks {
				return lvmdfake.Hooks{BeforeModify: hold[*lvmdv1.ModifyVolumeRequest](h)}
			},
			func(c *contention) func(context.Context, placed) error {
				library := &volumeModifier{c.c.core, c.t.Context(), newShares(few)}
				return func(ctx context.Context, claim placed) error {
					return library.Modify(ctx, c.pv("pvc-uid-"+claim.name), map[string]string{names.ParamIOWriteBPS: "1Mi"})
				}
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			whileOneIsSlow(t, test.hooks, func(t *testing.T, c *contention) {
				c.makeAll()
				call := test.prepare(c)
				first := make(chan error, 1)
				go func() { first <- call(t.Context(), c.slow[0]) }()
				c.waitHeld(1)
				limited, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := call(limited, c.slow[1]); status.Code(err) != codes.Aborted {
					t.Errorf("one more of the slow ones: got %v, want Aborted", err)
				}
				must.Succeed(t, call(t.Context(), c.quick))
				if n := c.held.count.Load(); n != 1 {
					t.Errorf("%d calls are held, want 1", n)
				}
				close(c.held.release)
				must.Succeed(t, <-first)
				must.Succeed(t, call(t.Context(), c.slow[1]))
			})
		})
	}
}

func (c *contention) snapshot(ctx context.Context, library *volumeSnapshotter, of placed) (handle string, err error) {
	_, handle, _, _, _, err = library.CreateSnapshot(ctx, "snapshot-"+of.name, c.volume(of).GetId(), map[string]string{
		utils.PrefixedVolumeSnapshotNameKey: of.name, utils.PrefixedVolumeSnapshotNamespaceKey: of.namespace}, nil)
	return handle, err
}

func contentOf(claim placed, handle string) *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "content-" + claim.name},
		Spec:       snapshotv1.VolumeSnapshotContentSpec{Driver: names.Driver, VolumeSnapshotRef: v1.ObjectReference{Namespace: claim.namespace, Name: claim.name}},
		Status:     &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle},
	}
}

func TestTheNamespaceOfASnapshotIsThatOfItsContent(t *testing.T) {
	contents := noContents()
	inStatus, inSpec := contentOf(placed{"taken", "a", ""}, "n1/a"), contentOf(placed{"provisioned", "b", ""}, "n1/b")
	inSpec.Spec.Source.SnapshotHandle, inSpec.Status = inSpec.Status.SnapshotHandle, nil
	others, late := contentOf(placed{"others", "c", ""}, "n1/c"), contentOf(placed{"x", "late", ""}, "n1/a")
	others.Spec.Driver = "example.com"
	library := &volumeSnapshotter{contents: contents}
	for _, content := range []*snapshotv1.VolumeSnapshotContent{inStatus, inSpec, others, late} {
		must.Succeed(t, contents.Add(content))
	}
	for handle, want := range map[string]string{"n1/a": "taken", "n1/b": "provisioned", "n1/c": "", "n1/unknown": ""} {
		if got := library.namespaceOf(handle); got != want {
			t.Errorf("the snapshot %s is of namespace %q, want %q", handle, got, want)
		}
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
		take(fmt.Sprintf("n%d", i%4), "greedy", codes.OK)
	}
	take("n0", "greedy", codes.Aborted) // it has half of the node
	take("n4", "greedy", codes.Aborted)
	take("n0", "other", codes.OK)
	take("n0", "", codes.OK)
	take("n0", "other", codes.Aborted)
	take("n0", "", codes.Aborted)
	take("n4", "other", codes.OK)
	releases[0]()
	releases = releases[1:]
	take("n4", "greedy", codes.OK)
	take("n0", "other", codes.OK)
	for _, release := range releases {
		release()
	}
	if len(s.calls) > 0 {
		t.Errorf("left are %v", s.calls)
	}
}
