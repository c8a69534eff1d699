package lvmd

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// errQueueFull is returned at once when too many wait.
var errQueueFull = errors.New("too many operations are waiting")

// queue hands out turns, one at a time, in the order of asking. It bounds how
// many may wait. It is safe for concurrent use.
type queue struct {
	limit int

	mu      sync.Mutex
	taken   bool
	waiters list.List // of chan struct{}
}

func newQueue(limit int) *queue { return &queue{limit: limit} }

// take waits for the caller's turn and returns the function that ends it,
// which must be called exactly once. It fails with the context's error when
// that comes first, and with errQueueFull.
func (q *queue) take(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	if !q.taken {
		q.taken = true
		q.mu.Unlock()
		return q.pass, nil
	}
	if q.waiters.Len() >= q.limit {
		q.mu.Unlock()
		return nil, errQueueFull
	}
	turn := make(chan struct{})
	waiter := q.waiters.PushBack(turn)
	q.mu.Unlock()

	select {
	case <-turn:
		return q.pass, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	select {
	case <-turn:
		// The turn came in the same moment: pass it on.
		q.mu.Unlock()
		q.pass()
	default:
		q.waiters.Remove(waiter)
		q.mu.Unlock()
	}
	return nil, ctx.Err()
}

func (q *queue) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if first := q.waiters.Front(); first != nil {
		q.waiters.Remove(first)
		close(first.Value.(chan struct{}))
		return
	}
	q.taken = false
}

// depth counts those who wait.
func (q *queue) depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiters.Len()
}
