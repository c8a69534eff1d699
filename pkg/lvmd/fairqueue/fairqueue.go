// Package fairqueue hands out one exclusive slot to the operations of many tenants, fairly.
package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// MaxTenantTurns is how many turns tenants have at most between two of the daemon's own operations
// while such a one waits.
// What it does for all tenants at once, such as to remove what they delete, keeps pace with them
// however many they are.
const MaxTenantTurns = 16

// ErrFull is returned to operations that are rejected because too many wait.
var ErrFull = errors.New("too many operations are waiting")

// ErrTimedOut is returned to operations that have waited for too long.
var ErrTimedOut = errors.New("other operations took too long")

// Tenant is on whose behalf the slot is asked for: a namespace of a cluster, which may be
// unknown.
type Tenant struct {
	Cluster, Namespace string
}

// caller is a tenant, or the daemon itself, which is the zero value.
type caller struct {
	Tenant
	isTenant bool
}

type callerKey struct{}

// WithTenant returns a context in which the slot is asked for on behalf of a tenant.
func WithTenant(ctx context.Context, t Tenant) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{t, true})
}

// WithoutTenant returns a context in which the slot is asked for by the daemon itself, as in
// contexts of which nothing was said.
func WithoutTenant(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{})
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// Queue hands out the slot. The callers that wait get it one after the other, round robin,
// and each caller's operations in the order of asking. However much one caller asks for,
// another waits for no more operations than there are callers, besides the daemon's own, which
// have a turn after MaxTenantTurns at the latest. It is safe for concurrent use.
//
// It bounds how many operations wait. When it is full, the latest one of the caller with the
// most waiting is rejected, so that no caller can fill it for others. It bounds, too, how
// long tenants wait.
type Queue struct {
	limit   int
	timeout time.Duration

	// mu guards the rest. It is held for a few steps in memory.
	mu   sync.Mutex
	held bool
	// lines has the operations that wait, by caller; round has the lines, the next one
	// first. Neither has empty ones.
	lines    map[caller]*line
	round    list.List // of *line
	waiting  int
	rejected uint64
	// tenantTurns counts the turns of tenants since the last one of the daemon's own.
	tenantTurns int
}

// line is where the operations of one caller wait.
type line struct {
	caller  caller
	waiters list.List // of *waiter
	place   *list.Element
}

// waiter is an operation that waits. The queue's lock guards it.
type waiter struct {
	line  *line
	place *list.Element
	// over is closed when the wait is; err is then nil for the slot.
	over chan struct{}
	err  error
}

// New returns a queue in which at most limit operations wait, those of tenants at most for
// the timeout.
func New(limit int, timeout time.Duration) *Queue {
	return &Queue{limit: limit, timeout: timeout, lines: map[caller]*line{}}
}

// Acquire waits for the slot on behalf of the context's caller and returns the function that
// releases it, which must be called exactly once. It fails with the context's error when
// that comes first, with ErrFull and with ErrTimedOut.
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

// abandon ends a wait with an error, also when the slot came in the same moment.
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

// enter has one more operation wait. The caller holds the lock.
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

// leave ends a wait. The caller holds the lock.
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

// reject ends the wait of the last operation of the longest line; of several, of the line
// that is served last. The caller holds the lock.
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

// release gives the slot to the first operation of the next line, which is the last line
// from then on. The next line is the daemon's own when tenants have had enough turns.
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

// State is what a queue reports of itself.
type State struct {
	// Waiting counts the operations that wait.
	Waiting int
	// Rejected counts the operations that were rejected, or timed out.
	Rejected uint64
}

// State returns the queue's state.
func (q *Queue) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return State{Waiting: q.waiting, Rejected: q.rejected}
}
