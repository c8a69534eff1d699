package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/api/leadership"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

const (
	// Bounds for one node, for concurrency, and for the whole announcement.
	announceTimeout = time.Second
	announcedAtOnce = 128
	announcePeriod  = 10 * time.Second
)

// lead releases the lease only after all that acted has stopped.
func (c *Controller) lead(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.core.Synced) {
		return nil
	}
	if !c.o.LeaderElect {
		return c.act(ctx)
	}
	return c.lease.hold(ctx, c.actUnderLease)
}

// actUnderLease acts with the lease's number: every call carries it, and nodes reject older
// ones. So a replica that was paused while another took over cannot change anything.
//
// All nodes must hear of the new number before it acts, except after a release: then the
// previous leader has stopped, and nodes were informed when an even earlier one might still
// have acted.
func (c *Controller) actUnderLease(ctx context.Context, released bool) error {
	now, err := c.readLeadership(ctx)
	if err != nil {
		c.o.Log.Info("the lease is not this replica's", "error", err)
		return nil
	}
	ctx = leadership.With(ctx, now)
	nodes := c.toInform()
	if !released {
		c.announce(context.WithoutCancel(ctx), nodes) // even if this replica is stopping: the next leader relies on it
		return c.act(ctx)
	}
	announcing, stop := context.WithCancel(ctx)
	var announced sync.WaitGroup
	announced.Go(func() { c.announce(announcing, nodes) })
	defer announced.Wait()
	defer stop()
	return c.act(ctx)
}

// readLeadership returns the number of this replica's lease. It retries until ctx is done.
func (c *Controller) readLeadership(ctx context.Context) (leadership.Leadership, error) {
	for {
		callCtx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
		lease, err := c.o.Client.CoordinationV1().Leases(c.o.Namespace).Get(callCtx, leaseName, metav1.GetOptions{})
		cancel()
		switch {
		case err == nil && ptr.Deref(lease.Spec.HolderIdentity, "") != c.o.Identity:
			return leadership.Leadership{}, fmt.Errorf("lease %s is held by %q, not by %q", leaseName, ptr.Deref(lease.Spec.HolderIdentity, ""), c.o.Identity)
		case err == nil:
			return leadership.Leadership{Cluster: c.core.ID, Lease: lease.CreationTimestamp.Unix(),
				Transitions: int64(ptr.Deref(lease.Spec.LeaseTransitions, 0))}, nil
		}
		c.o.Log.Warn("the lease cannot be read, trying on", "lease", leaseName, "error", err)
		select {
		case <-ctx.Done():
			return leadership.Leadership{}, ctx.Err()
		case <-time.After(c.lease.retry):
		}
	}
}

func (c *Controller) toInform() (nodes []string) {
	for _, view := range c.core.Fleet.Views() {
		if view.Connected {
			nodes = append(nodes, view.Node)
		}
	}
	c.core.metrics.uninformed.Set(float64(len(nodes)))
	return nodes
}

// announce shows nodes which replica leads. One that does not answer learns it with its first
// call.
func (c *Controller) announce(ctx context.Context, nodes []string) {
	announceTo(ctx, nodes, func(ctx context.Context, node string) {
		defer c.core.metrics.uninformed.Dec()
		if err := c.core.Fleet.Announce(ctx, node); err != nil {
			c.o.Log.Info("node does not know yet that this replica leads", "node", node, "error", err)
		}
	})
}

func announceTo(ctx context.Context, nodes []string, ask func(ctx context.Context, node string)) {
	ctx, cancel := context.WithTimeout(ctx, announcePeriod)
	defer cancel()
	var calls errgroup.Group
	calls.SetLimit(announcedAtOnce)
	for _, node := range nodes {
		calls.Go(func() error {
			callCtx, cancel := context.WithTimeout(ctx, announceTimeout)
			defer cancel()
			ask(callCtx, node)
			return nil
		})
	}
	_ = calls.Wait() // none fails
}

func (c *Controller) act(ctx context.Context) error {
	c.o.Log.Info("leading")
	c.core.metrics.leading.Set(1)
	defer c.core.metrics.leading.Set(0)
	defer c.o.Log.Info("not leading any more")

	if err := awaitLibraries(); err != nil {
		return err
	}
	c.adoptHolds()
	a := c.assemble()
	// Before publishing capacity: it must not include space that claims have selected already.
	c.core.ledger.ReleaseAll()
	a.provisioner.DeriveReservations()
	c.acting.Store(a)
	defer c.acting.Store(nil)

	group, running := errgroup.WithContext(ctx)
	c.start(running, group, a)
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}
