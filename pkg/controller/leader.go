package controller

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	leaseName     = "carve-controller"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead waits until the caches are complete, and then acts for as long as this
// replica holds the lease, again and again until ctx is done. The lease is
// given up only after everything that acted has stopped.
func (c *Controller) lead(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.core.synced) {
		return nil
	}
	c.core.pace.survey(c.core)
	if !c.o.LeaderElect {
		return c.act(ctx)
	}
	for ctx.Err() == nil {
		if err := c.holdLease(ctx); err != nil {
			return err
		}
	}
	return nil
}

// holdLease contends for the lease once, and acts while it has it.
func (c *Controller) holdLease(ctx context.Context) error {
	// The elector outlives ctx by as long as the acting parts take to stop.
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	done := make(chan error, 1)
	started := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.o.Namespace, Name: leaseName},
			Client:     c.o.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.o.Identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Name:            leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(started)
				acting, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				done <- c.act(acting)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare leader election: %w", err)
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-electing.Done():
			return
		}
		select {
		case <-started: // act releases when it has stopped
		default:
			release()
		}
	}()
	elector.Run(electing)
	select {
	case <-started:
		return <-done
	default:
		return nil
	}
}

// act does what only the leader does, until ctx is done.
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
	if a.provisioner != nil {
		// Reservations first: room that claims chose already must not be published.
		c.core.ledger.ReleaseAll()
		a.provisioner.deriveReservations()
	}
	c.setActing(a)
	defer c.setActing(nil)

	group, running := errgroup.WithContext(ctx)
	c.start(running, group, a)
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (c *Controller) setActing(a *acting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acting = a
}
