package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

const (
	leaseName = "carve-controller"
	// A leader that is gone without having released the lease is replaced 9.3 seconds after it renewed it last, or
	// sooner: another one sees that at its next retry, which with its jitter is 2.2 retryPeriod later at most, and
	// retries once more after leaseDuration. A leader outlives an API server that does not answer for renewDeadline.
	leaseDuration = 6 * time.Second
	renewDeadline = 4500 * time.Millisecond
	retryPeriod   = 750 * time.Millisecond
	// maxOverdue bounds how long act may run after the lease was lost: nothing else stops a replica that
	// hangs, and it cannot contend for the lease again before act returns.
	maxOverdue = 2 * time.Minute
)

// lease is what the replicas contend for: its holder acts.
type lease struct {
	client              kubernetes.Interface
	namespace, identity string
	// A lease that was not renewed for duration is free. Its holder gives up when it could not renew it
	// for deadline, and the others look at it once per retry, which may be 1.2 times that more.
	duration, deadline, retry time.Duration
	// current is the candidacy under way, nil for none.
	current atomic.Pointer[candidacy]
	// lostAt is set while act runs after the lease was lost.
	lostAt atomic.Pointer[time.Time]
}

// healthy returns an error if act has not returned for maxOverdue after the lease was lost.
func (l *lease) healthy() error {
	if lost := l.lostAt.Load(); lost != nil && time.Since(*lost) > maxOverdue {
		return fmt.Errorf("lost lease %s %v ago, and has not stopped acting since", leaseName, time.Since(*lost).Round(time.Second))
	}
	return nil
}

// newLease makes the lease of a replica.
func newLease(o Options) *lease {
	return &lease{client: o.Client, namespace: o.Namespace, identity: o.Identity,
		duration: leaseDuration, deadline: renewDeadline, retry: retryPeriod}
}

// hold contends for the lease, and acts for as long as it is held, again and again until ctx is done
// or act fails. When ctx is done, the lease is released after act has returned. released says that the
// replica before had released it, so that nothing acts there.
func (l *lease) hold(ctx context.Context, act func(ctx context.Context, released bool) error) error {
	ctx, cancel := context.WithCancel(ctx)
	leases := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(l.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, leaseName).String()
		}))
	defer leases.Shutdown()
	defer cancel()
	if _, err := cluster.Watch(cluster.OnChange(leases.Coordination().V1().Leases().TypedInformer(), l.changed, nil)); err != nil {
		return err
	}
	leases.Start(ctx.Done())
	for ctx.Err() == nil {
		if err := l.holdOnce(ctx, act); err != nil {
			return err
		}
	}
	return nil
}

// changed ends the candidacy under way when another replica has released the lease: the next one looks at
// the lease at once, and not only after the time of a retry. Without the right to watch the lease, that is
// what a replica waits for.
func (l *lease) changed(now *coordinationv1.Lease) {
	c := l.current.Load()
	if c == nil || ptr.Deref(now.Spec.HolderIdentity, "") != "" || c.elector.IsLeader() {
		return
	}
	c.giveUp()
}

// holdOnce contends for the lease once, and acts while it is held.
func (l *lease) holdOnce(ctx context.Context, act func(ctx context.Context, released bool) error) error {
	// The elector outlives ctx by as long as act takes to stop.
	electing, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	c := &candidacy{end: end}
	done := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{candidacy: c, LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.namespace, Name: leaseName},
			Client:     l.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.identity},
		}},
		LeaseDuration: l.duration, RenewDeadline: l.deadline, RetryPeriod: l.retry,
		ReleaseOnCancel: true,
		Name:            leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if !c.begin() {
					return
				}
				acting, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				err := act(acting, c.released)
				c.state.Store(ended)
				done <- err
				end()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare leader election: %w", err)
	}
	c.elector = elector
	l.current.Store(c)
	defer context.AfterFunc(ctx, c.giveUp)()
	elector.Run(electing)
	if c.giveUp(); c.state.Load() == givenUp {
		return nil
	}
	l.lostAt.Store(ptr.To(time.Now()))
	defer l.lostAt.Store(nil)
	return <-done
}

// lock is the lease as the elector of a candidacy reads and writes it.
type lock struct {
	*resourcelock.LeaseLock
	candidacy *candidacy
	// holder is the one that was read last, taken whether the candidacy has had the lease.
	holder string
	taken  bool
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil {
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

// Create implements resourcelock.Interface. A lease that is not there was not released.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.taken = true
	return l.LeaseLock.Create(ctx, record)
}

// Update implements resourcelock.Interface. After renewals that failed, the elector would release the lease
// while act goes on, and even if another replica holds it by then (client-go v0.37).
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && (l.holder != l.Identity() || !l.candidacy.over()) {
		return errors.New("it is not released: another replica holds it, or this one acts")
	}
	if err := l.LeaseLock.Update(ctx, record); err != nil {
		return err
	}
	if !l.taken {
		l.taken, l.candidacy.released = true, l.holder == ""
	}
	return nil
}

// candidacy is one attempt to get the lease. The elector calls back in a goroutine of its own, which
// may be late: whether anything is done under the lease is decided once. Its methods may be called concurrently.
type candidacy struct {
	state   atomic.Int32
	elector *leaderelection.LeaderElector
	// end has the elector stop, and release the lease if it got it.
	end context.CancelFunc
	// released says that the lease had no holder when it was got. It is written before act is called.
	released bool
}

// The states of a candidacy.
const (
	undecided int32 = iota
	begun           // act was called, and ends the candidacy when it returns
	ended           // it has returned
	givenUp         // act was not called, and never will be
)

// begin reports whether act is to be called: the candidacy was not given up before.
func (c *candidacy) begin() bool {
	return c.state.CompareAndSwap(undecided, begun)
}

// giveUp ends the candidacy, unless act was called.
func (c *candidacy) giveUp() {
	if c.state.CompareAndSwap(undecided, givenUp) {
		c.end()
	}
}

// over reports whether act does not run, and will not. It gives up a candidacy that was not decided.
func (c *candidacy) over() bool {
	c.giveUp()
	return c.state.Load() != begun
}
