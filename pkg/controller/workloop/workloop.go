// Package workloop works on the keys of a queue, several at a time.
//
// Tenants take turns: however many keys one tenant has in the queue, a key of another one
// waits for one key of each. A key that waits for something outside, such as a node,
// takes no place of those that could go on.
//
// Callers: pkg/controller.
package workloop

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Options say how a Loop works. Name, Work, Parallel, RetryMin and RetryMax are required.
type Options[K comparable] struct {
	// Name is that of the queue in metrics.
	Name string
	// Work does what a key needs. It is called for one key once at a time. The key is worked
	// on again after an error, later each time, and once again has passed if that is positive.
	Work func(ctx context.Context, key K) (again time.Duration, err error)
	// Failed, if it is set, is called with each error of Work before the context ends.
	Failed func(ctx context.Context, key K, err error)
	// Tenant returns to whom a key belongs. Without it, all keys are of one tenant. It is
	// called with the queue's lock held, and must not call the Loop.
	Tenant func(key K) string
	// Parallel is how many keys are worked on at a time. Those in Outside do not count.
	Parallel int
	// RetryMin and RetryMax bound the pauses after errors.
	RetryMin, RetryMax time.Duration
}

// Loop is a queue and its workers. Its methods are safe for concurrent use.
type Loop[K comparable] struct {
	o     Options[K]
	queue workqueue.TypedRateLimitingInterface[K]
	// places has an element for each key that is worked on and not in Outside.
	places chan struct{}
}

// New returns a Loop that takes keys, and works on them once Run is called.
func New[K comparable](o Options[K]) *Loop[K] {
	fair := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: o.Name, Queue: newRoundRobin(o.Tenant)})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: o.Name, Queue: fair})
	return &Loop[K]{
		o: o, places: make(chan struct{}, o.Parallel),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](o.RetryMin, o.RetryMax),
			workqueue.TypedRateLimitingQueueConfig[K]{Name: o.Name, DelayingQueue: delaying}),
	}
}

// Add has a key worked on. One that is in the queue already is worked on once; one that is
// being worked on is worked on again.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter is Add in a while. However often it is called meanwhile, the key is added once, at the earliest
// time that was asked for.
func (l *Loop[K]) AddAfter(key K, after time.Duration) { l.queue.AddAfter(key, after) }

// Failures is how often in a row Work failed for a key.
func (l *Loop[K]) Failures(key K) int { return l.queue.NumRequeues(key) }

// Run works until ctx is done and all calls of Work have returned. It is called once.
func (l *Loop[K]) Run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer context.AfterFunc(ctx, l.queue.ShutDown)()
	for {
		// The key comes first: a place that is held until there is a key is none for one that
		// was in Outside.
		key, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		l.places <- struct{}{}
		workers.Go(func() {
			defer func() { <-l.places }()
			defer l.queue.Done(key)
			l.work(ctx, key)
		})
	}
}

func (l *Loop[K]) work(ctx context.Context, key K) {
	if ctx.Err() != nil {
		return // The queue hands out what is left in it: a leader has its lease until that is done.
	}
	again, err := l.o.Work(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if l.o.Failed != nil {
			l.o.Failed(ctx, key, err)
		}
		l.queue.AddRateLimited(key)
	case again > 0:
		l.queue.Forget(key)
		l.queue.AddAfter(key, again)
	default:
		l.queue.Forget(key)
	}
}

// Outside calls wait, which waits for something outside, and lets another key be worked on
// meanwhile. Only Work calls it, in the goroutine that it was called in.
func (l *Loop[K]) Outside(wait func()) {
	<-l.places
	// Each holder of a place gives it back without waiting for Outside.
	defer func() { l.places <- struct{}{} }()
	wait()
}
