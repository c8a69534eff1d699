// Package workloop works on the keys of a queue, several at a time.
//
// Tenants take turns: however many keys one tenant has in the queue, a key of another waits for at
// most one key of each. A key that waits for something outside, such as a node, does not block
// others.
//
// Callers: pkg/controller.
package workloop

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Options configure a Loop. Name, Work, Parallel, RetryMin and RetryMax are required.
type Options[K comparable] struct {
	// Name is the queue's name in metrics.
	Name string
	// Work works on a key, never concurrently on the same one. The loop retries the key after an
	// error, with growing pauses, and calls Work again after again if that is positive.
	Work func(ctx context.Context, key K) (again time.Duration, err error)
	// Failed, if set, is called with each error of Work before the context ends.
	Failed func(ctx context.Context, key K, err error)
	// Tenant returns the owner of a key; nil means one owner. It is called with the queue's lock
	// held, and must not call the Loop.
	Tenant func(key K) string
	// Parallel limits the keys worked on at a time, without those in Outside.
	Parallel int
	// RetryMin and RetryMax limit the pauses after errors.
	RetryMin, RetryMax time.Duration
}

// Loop is a queue and its workers. Its methods may be called concurrently.
type Loop[K comparable] struct {
	o     Options[K]
	queue workqueue.TypedRateLimitingInterface[K]
	// places has an element for each key that is worked on and not in Outside.
	places chan struct{}
}

// New returns a Loop that accepts keys, and works on them once Run is called.
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

// Add queues a key. A key that is already queued is worked on once; one that is being worked on is
// worked on again.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter is Add after a pause. Several calls add the key once, at the earliest time.
func (l *Loop[K]) AddAfter(key K, after time.Duration) { l.queue.AddAfter(key, after) }

// Failures returns the number of consecutive failures of Work for a key.
func (l *Loop[K]) Failures(key K) int { return l.queue.NumRequeues(key) }

// Run works until ctx is done and all calls of Work have returned. Call it once.
func (l *Loop[K]) Run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer context.AfterFunc(ctx, l.queue.ShutDown)()
	for {
		// Get the key before a place: a place reserved for a future key would be lost to one that
		// returns from Outside.
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
		return // drop the rest of the queue: a leader keeps its lease until this ends
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

// Outside calls wait, which waits for something outside, and lets another key be worked on in the
// meantime. Only Work may call it, in its own goroutine.
func (l *Loop[K]) Outside(wait func()) {
	<-l.places
	// This cannot deadlock: each holder of a place releases it without waiting for Outside.
	defer func() { l.places <- struct{}{} }()
	wait()
}
