// Package fairqueue grants one exclusive slot to the operations of many tenants, fairly.
package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// MaxTenantTurns bounds the turns of tenants before a waiting operation of the daemon's own. Its
// work for all tenants, such as removing what they delete, thus keeps pace with any number of them.
const MaxTenantTurns = 16

// ErrFull means that too many operations wait.
var ErrFull = errors.New("too many operations are waiting")

// ErrTimedOut means that the operation waited for too long.
var ErrTimedOut = errors.New("other operations took too long")

// Tenant is a namespace of a cluster, which may be empty.
type Tenant struct {
	Cluster, Namespace string
}

// caller is the daemon itself as the zero value.
type caller struct {
	Tenant
	isTenant bool
}

type callerKey struct{}

// WithTenant returns a context for operations of a tenant.
func WithTenant(ctx context.Context, t Tenant) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{t, true})
}

// WithoutTenant returns a context for the daemon's own operations, as is a context without a
// caller.
func WithoutTenant(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{})
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// Queue grants the slot to waiting callers round-robin, and to each caller's operations in order.
// However much one caller asks for, another waits for one operation of each at most, and for the
// daemon's own, which get a turn after at most MaxTenantTurns. It is safe for concurrent use.
//
// If the queue is full, it rejects the latest operation of the caller with the most waiting, so
// that no caller can fill it for others. It also bounds the wait of tenants.
type Queue struct {
	limit   int
	timeout time.Duration

	// mu guards the fields below, for a few steps in memory.
	mu   sync.Mutex
	held bool
	// round has the non-empty lines, the next one first.
	lines    map[caller]*line
	round    list.List // of *line
	waiting  int
	rejected uint64
	// tenantTurns counts the turns of tenants since the daemon's last one.
	tenantTurns int
}

// line has the waiting operations of one caller.
type line struct {
	caller  caller
	waiters list.List // of *waiter
	place   *list.Element
}

// waiter is a waiting operation. The queue's lock guards it.
type waiter struct {
	line  *line
	place *list.Element
	// over is closed at the end of the wait; a nil err then means the slot.
	over chan struct{}
	err  error
}

// New returns a queue of at most limit waiting operations. timeout bounds the wait of tenants.
func New(limit int, timeout time.Duration) *Queue {
	return &Queue{limit: limit, timeout: timeout, lines: map[caller]*line{}}
}

// Acquire waits for the slot on behalf of the context's caller. release must be called exactly
// once. It fails with ctx's error, ErrFull or ErrTimedOut.
func (q *Queue) Acquire(ctx context.Context) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	if !q.held {
		q.held = true
		q.mu.Unlock()
		return q.release, nil
	}
	w := q.enter(callerOf(ctx))
	if q.waiting > q.limit {
		q.reject()
	}
	q.mu.Unlock()

	var timeout <-chan time.Time
	if w.line.caller.isTenant {
		timer := time.NewTimer(q.timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-w.over:
		if w.err != nil {
			return nil, w.err
		}
		return q.release, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout:
		err = ErrTimedOut
	}
	q.abandon(w, err)
	return nil, err
}

// abandon passes the slot on if that came at the same moment.
func (q *Queue) abandon(w *waiter, err error) {
	q.mu.Lock()
	select {
	case <-w.over:
		q.mu.Unlock()
		if w.err == nil {
			q.release()
		}
		return
	default:
	}
	if errors.Is(err, ErrTimedOut) {
		q.rejected++
	}
	q.leave(w, err)
	q.mu.Unlock()
}

// enter requires the lock.
func (q *Queue) enter(c caller) *waiter {
	l := q.lines[c]
	if l == nil {
		l = &line{caller: c}
		l.place = q.round.PushBack(l)
		q.lines[c] = l
	}
	w := &waiter{line: l, over: make(chan struct{})}
	w.place = l.waiters.PushBack(w)
	q.waiting++
	return w
}

// leave requires the lock.
func (q *Queue) leave(w *waiter, err error) {
	w.line.waiters.Remove(w.place)
	if w.line.waiters.Len() == 0 {
		q.round.Remove(w.line.place)
		delete(q.lines, w.line.caller)
	}
	q.waiting--
	w.err = err
	close(w.over)
}

// reject ends the wait of the last operation of the longest line; among several, of the line served
// last. It requires the lock.
func (q *Queue) reject() {
	var longest *line
	for e := q.round.Back(); e != nil; e = e.Prev() {
		if l := e.Value.(*line); longest == nil || l.waiters.Len() > longest.waiters.Len() {
			longest = l
		}
	}
	q.rejected++
	q.leave(longest.waiters.Back().Value.(*waiter), ErrFull)
}

// release passes the slot to the next line, which moves to the back. The daemon's own line is next
// if tenants have had MaxTenantTurns.
func (q *Queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.round.Front()
	if next == nil {
		q.held = false
		return
	}
	if own := q.lines[caller{}]; own != nil && q.tenantTurns >= MaxTenantTurns {
		next = own.place
	}
	if next.Value.(*line).caller.isTenant {
		q.tenantTurns++
	} else {
		q.tenantTurns = 0
	}
	q.round.MoveToBack(next)
	q.leave(next.Value.(*line).waiters.Front().Value.(*waiter), nil)
}

// State has the numbers that a queue reports.
type State struct {
	// Waiting counts waiting operations.
	Waiting int
	// Rejected counts operations that were rejected or timed out.
	Rejected uint64
}

// State returns the queue's state.
func (q *Queue) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return State{Waiting: q.waiting, Rejected: q.rejected}
}
