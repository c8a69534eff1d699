package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/api/leadership"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

type numberedCall struct {
	method string
	by     leadership.Leadership
	// numbered is false for calls without a leader's number.
	numbered bool
}

type callRecorder struct {
	mu    sync.Mutex
	calls []numberedCall
}

func (r *callRecorder) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	by, numbered, err := leadership.Of(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.calls = append(r.calls, numberedCall{path.Base(info.FullMethod), by, numbered})
	r.mu.Unlock()
	return handler(ctx, req)
}

func (r *callRecorder) all() []numberedCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func (r *callRecorder) by(t *testing.T, method string) (leaders []leadership.Leadership) {
	t.Helper()
	for _, c := range r.all() {
		switch {
		case c.method != method:
		case !c.numbered:
			t.Errorf("a call of %s has no number", method)
		default:
			leaders = append(leaders, c.by)
		}
	}
	return leaders
}

func TestWhatALeaderAsksANodeForCarriesTheNumberOfItsLease(t *testing.T) {
	client := realisticClient(t)
	h := &harness{t: t, client: client}
	first := startReplica(t, client, "first")
	waittest.Until(t, "the first leads", first.leads)
	second := startReplica(t, client, "second")
	h.class("carve", expandable)
	lvmd := h.node("n1", 0)
	lvmd.Resize("local", gib)
	var calls callRecorder
	connectServing(t, client, "n1", func() *grpc.Server {
		server := grpc.NewServer(append(uplink.ServerOptions(), grpc.ChainUnaryInterceptor(calls.intercept))...)
		lvmdv1.RegisterLVMDServer(server, lvmd)
		return server
	}, slog.New(slog.DiscardHandler), first, second)
	for _, r := range []*replica{first, second} {
		waittest.Until(t, "the node is connected to both", func() bool { return r.c.core.Fleet.Connected() == 1 })
	}
	lease := func() leadership.Leadership {
		l := must.Get(client.CoordinationV1().Leases("carve-system").Get(t.Context(), leaseName, metav1.GetOptions{}))(t)
		return leadership.Leadership{Cluster: "the-cluster", Lease: l.CreationTimestamp.Unix(), Transitions: int64(ptr.Deref(l.Spec.LeaseTransitions, 0))}
	}
	h.claim("one", "n1", nil)
	waittest.Until(t, "a claim is served", h.bound("one"))
	before := lease()
	if got, want := calls.by(t, "CreateVolume"), []leadership.Leadership{before}; !slices.Equal(got, want) {
		t.Errorf("the volume was asked for by %v, want %v", got, want)
	}

	first.stop()
	waittest.Until(t, "the second leads", second.leads)
	now := lease()
	if !before.Before(now) {
		t.Errorf("the second leads with %v, want one after %v", now, before)
	}
	// No node had been needed yet.
	waittest.Until(t, "the node is informed of the second", func() bool {
		return slices.Equal(calls.by(t, "ListClasses"), []leadership.Leadership{now})
	}, func() any { return calls.all() })
	h.grow("one", "200Mi")
	waittest.Until(t, "the volume has grown", func() bool {
		return h.pv("pvc-uid-one").Spec.Capacity.Storage().Cmp(resource.MustParse("200Mi")) == 0
	})
	h.deleteClaim("one")
	waittest.Until(t, "the volume is gone", func() bool { return len(lvmd.Volumes()) == 0 && h.volumes() == 0 })
	for _, method := range []string{"ExpandVolume", "DeleteVolume"} {
		got := slices.Compact(calls.by(t, method))
		if !slices.Equal(got, []leadership.Leadership{now}) {
			t.Errorf("%s was asked for by %v, want %v", method, got, now)
		}
	}
}

func TestSnapshotsAreAskedForWithTheNumberOfTheLeaseAndNotAfterItsEnd(t *testing.T) {
	h := newHarness(t)
	h.node("n1", 0)
	h.class("carve", nil)
	lvmd := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib, Thin: true})
	var calls callRecorder
	server := grpc.NewServer(append(uplink.ServerOptions(), grpc.ChainUnaryInterceptor(calls.intercept))...)
	lvmdv1.RegisterLVMDServer(server, lvmd)
	h.net.AttachServer("n1", server)
	h.run()
	h.boundVolume("v", "n1")
	volume := lvmd.Volumes()["pvc-uid-v"].GetId()
	h.waitNamed(volume)

	number := leadership.Leadership{Cluster: "cluster", Lease: 7, Transitions: 3}
	leading, stop := context.WithCancel(leadership.With(t.Context(), number))
	library := h.c.snapshotter(leading, noContents())
	_, handle, _, _, _, err := library.CreateSnapshot(t.Context(), "s", volume, nil, nil)
	must.Succeed(t, err)
	must.Succeed(t, library.DeleteSnapshot(t.Context(), handle, nil))
	for _, method := range []string{"CreateSnapshot", "DeleteSnapshot"} {
		if got := calls.by(t, method); !slices.Equal(got, []leadership.Leadership{number}) {
			t.Errorf("%s was asked for by %v, want %v", method, got, number)
		}
	}
	stop()
	if _, _, _, _, _, err := library.CreateSnapshot(t.Context(), "late", volume, nil, nil); err == nil || len(lvmd.Snapshots()) != 0 {
		t.Errorf("after the end of leading: error %v, snapshots %v", err, lvmd.Snapshots())
	}
}

func leaseOf(holder string, transitions int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: leaseName, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &transitions},
	}
}

func TestALeaseThatAnotherHoldsByNowIsNotActedUnder(t *testing.T) {
	h := newHarnessOn(t, newClientset(leaseOf("another", 4)), func(c *Controller) { c.o.Identity = "me" })
	acted := false
	h.react("*", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		acted = true
		return false, nil, nil
	})
	must.Succeed(t, h.c.actUnderLease(t.Context(), false))
	if acted || h.c.acting.Load() != nil {
		t.Error("a replica whose lease another one holds has acted")
	}
	if _, err := h.c.readLeadership(t.Context()); err == nil {
		t.Error("the number of another one's lease was taken")
	}
}

// After an expired lease its holder may still act: nodes hear of the new leader before it
// decides anything. After a released lease, unresponsive nodes delay nothing.
func TestOnlyALeaderAfterOneThatMayActOnWaitsForNodesToHearOfIt(t *testing.T) {
	for _, released := range []bool{true, false} {
		t.Run(fmt.Sprintf("released %t", released), func(t *testing.T) {
			h := newHarnessOn(t, newClientset(leaseOf("me", 4)), func(c *Controller) { c.o.Identity = "me" })
			h.c.all.Start(t.Context().Done())
			h.c.own.Start(t.Context().Done())
			acts := func() bool { return h.c.acting.Load() != nil }
			heard := make(chan bool, 1)
			server := grpc.NewServer(append(uplink.ServerOptions(), grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if info.FullMethod == lvmdv1.LVMD_ListClasses_FullMethodName {
					for released && !acts() && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					heard <- acts() && testutil.ToFloat64(h.c.core.metrics.uninformed) == 1
				}
				return handler(ctx, req)
			}))...)
			lvmdv1.RegisterLVMDServer(server, lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}))
			h.net.AttachServer("n1", server)
			waittest.Until(t, "the node connects", func() bool { view, ok := h.c.core.Fleet.View("n1"); return ok && view.Connected })
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- h.c.actUnderLease(ctx, released) }()
			if acted := <-heard; acted != released {
				t.Errorf("when the node heard of it, the leader acted: %t", acted)
			}
			waittest.Until(t, "it acts", acts)
			waittest.Until(t, "all nodes have heard of it", func() bool { return testutil.ToFloat64(h.c.core.metrics.uninformed) == 0 })
			stop()
			must.Succeed(t, <-done)
			h.c.core.Fleet.Close()
			h.net.Close()
		})
	}
}

func TestALeaderThatStopsHasItsUplinksUntilItHasReleasedTheLease(t *testing.T) {
	client := realisticClient(t)
	r := startReplica(t, client, "only")
	waittest.Until(t, "it leads", r.leads)
	connect(t, client, "n1", lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), r)
	waittest.Until(t, "the node connects", func() bool { view, ok := r.c.core.Fleet.View("n1"); return ok && view.Connected })
	released := make(chan error, 1)
	clientfake.React(client, "update", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if l, ok := a.(k8stesting.UpdateAction).GetObject().(*coordinationv1.Lease); ok && ptr.Deref(l.Spec.HolderIdentity, "") == "" {
			released <- r.c.core.Fleet.Announce(t.Context(), "n1")
		}
		return false, nil, nil
	})
	r.stop()
	if err := <-released; err != nil {
		t.Errorf("when the lease is released, the node cannot be called: %v", err)
	}
}

func TestALeaseThatCannotBeReadIsReadAgain(t *testing.T) {
	h := newHarnessOn(t, newClientset(leaseOf("me", 4)), func(c *Controller) { c.o.Identity, c.core.ID = "me", "c" })
	failures := 2
	h.react("get", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("no answer")
	})
	got := must.Get(h.c.readLeadership(t.Context()))(t)
	if want := (leadership.Leadership{Cluster: "cluster", Lease: 1000, Transitions: 4}); got != want {
		t.Errorf("the lease's number is %v, want %v", got, want)
	}
}
