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
	// A leader that dies without releasing the lease is replaced at most 9.3 s after its last
	// renewal: another replica sees the renewal up to 2.2 retryPeriod later, with jitter, and
	// retries once more after leaseDuration. A leader survives renewDeadline without the API
	// server.
	leaseDuration = 6 * time.Second
	renewDeadline = 4500 * time.Millisecond
	retryPeriod   = 750 * time.Millisecond
	// maxOverdue bounds the run of act after the lease is lost: nothing else stops a hanging
	// replica, which cannot contend for the lease again before act returns.
	maxOverdue = 2 * time.Minute
)

type lease struct {
	client              kubernetes.Interface
	namespace, identity string
	// The lease is free duration after its last renewal. Its holder stops after failing to
	// renew for deadline; others check it every retry, up to 1.2 times that longer.
	duration, deadline, retry time.Duration
	// current is nil between candidacies.
	current atomic.Pointer[candidacy]
	// lostAt is set while act runs after the lease was lost.
	lostAt atomic.Pointer[time.Time]
}

func (l *lease) healthy() error {
	if lost := l.lostAt.Load(); lost != nil && time.Since(*lost) > maxOverdue {
		return fmt.Errorf("lost lease %s %v ago, and has not stopped acting since", leaseName, time.Since(*lost).Round(time.Second))
	}
	return nil
}

func newLease(o Options) *lease {
	return &lease{client: o.Client, namespace: o.Namespace, identity: o.Identity,
		duration: leaseDuration, deadline: renewDeadline, retry: retryPeriod}
}

// hold contends for the lease, and acts while it holds it, repeatedly until ctx is done or act
// fails. When ctx is done it releases the lease after act has returned. released means that
// the previous holder released the lease, so it no longer acts.
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

// changed ends the candidacy when another replica releases the lease: the next one reads the
// lease at once instead of at the next retry, as it must without the right to watch the lease.
func (l *lease) changed(now *coordinationv1.Lease) {
	c := l.current.Load()
	if c == nil || ptr.Deref(now.Spec.HolderIdentity, "") != "" || c.elector.IsLeader() {
		return
	}
	c.giveUp()
}

func (l *lease) holdOnce(ctx context.Context, act func(ctx context.Context, released bool) error) error {
	// The elector must outlive ctx until act has stopped.
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

type lock struct {
	*resourcelock.LeaseLock
	candidacy *candidacy
	// holder was read last; taken means the candidacy has had the lease.
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

// Create implements resourcelock.Interface. A missing lease does not count as released.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.taken = true
	return l.LeaseLock.Create(ctx, record)
}

// Update implements resourcelock.Interface. It prevents a release while act runs or another
// replica holds the lease: after failed renewals the elector would try (client-go v0.37).
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

// candidacy is one attempt to get the lease. The elector calls back in its own goroutine,
// maybe late: state decides once whether act runs. Safe for concurrent use.
type candidacy struct {
	state   atomic.Int32
	elector *leaderelection.LeaderElector
	// end stops the elector, which then releases the lease if it has it.
	end context.CancelFunc
	// released means the lease had no holder. It is written before act is called.
	released bool
}

const (
	undecided int32 = iota
	begun           // act was called, and ends the candidacy when it returns
	ended           // act has returned
	givenUp         // act will never be called
)

func (c *candidacy) begin() bool {
	return c.state.CompareAndSwap(undecided, begun)
}

func (c *candidacy) giveUp() {
	if c.state.CompareAndSwap(undecided, givenUp) {
		c.end()
	}
}

// over reports whether act is not running and never will. It decides an undecided candidacy.
func (c *candidacy) over() bool {
	c.giveUp()
	return c.state.Load() != begun
}
