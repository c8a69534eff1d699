package lvmd

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// errQueueFull is returned to those who are turned away.
var errQueueFull = errors.New("too many operations are waiting")

// errWaitedTooLong is returned to those whose turn does not come.
var errWaitedTooLong = errors.New("other operations took too long")

// maxWait bounds the wait of an operation that somebody asked for. Most callers
// give up long before; who sets no deadline learns in the end that the volume
// group is slower than what is asked of it. lvmd's own work waits as long as it
// takes.
const maxWait = 10 * time.Minute

// caller is on whose behalf a turn is asked for: a namespace of a cluster, or
// lvmd itself, which is the zero value.
type caller struct {
	cluster, namespace string
	// outside is true for all but lvmd itself: a volume's owner may be unknown.
	outside bool
}

type callerKey struct{}

// onBehalfOf is a context in which turns are asked for on behalf of an owner.
func onBehalfOf(ctx context.Context, o owner) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{cluster: o.Cluster, namespace: cmp.Or(o.Namespace, o.PodNamespace), outside: true})
}

// onOwnBehalf is a context in which turns are lvmd's own.
func onOwnBehalf(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{})
}

// callerOf is lvmd itself unless the context says something else.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// queue hands out turns, one at a time: the callers that wait get them one
// after the other, round and round, and each caller's in the order of asking.
// However much one caller asks for, another waits for no more turns than there
// are callers. It is safe for concurrent use.
//
// It bounds how many wait. When it is full, whoever of the caller with the most
// waiting asked last is turned away, so that no caller can fill it for others. It
// bounds, too, how long anybody but lvmd itself waits.
type queue struct {
	limit    int
	patience time.Duration

	mu    sync.Mutex
	taken bool
	// lanes has those who wait, by caller; round has the lanes, the next one
	// first. Neither has empty ones.
	lanes   map[caller]*lane
	round   list.List // of *lane
	waiting int
	refused uint64
}

// lane is where the operations of one caller wait.
type lane struct {
	caller  caller
	waiters list.List // of *waiter
	place   *list.Element
}

// waiter is an operation that waits. The queue's lock guards it.
type waiter struct {
	lane  *lane
	place *list.Element
	// over is closed when the wait is; err is then nil for the turn.
	over chan struct{}
	err  error
}

func newQueue(limit int, patience time.Duration) *queue {
	return &queue{limit: limit, patience: patience, lanes: map[caller]*lane{}}
}

// take waits for a turn on behalf of the context's caller and returns the
// function that ends it, which must be called exactly once. It fails with the
// context's error when that comes first, with errQueueFull and with
// errWaitedTooLong.
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
	w := q.enter(callerOf(ctx))
	if q.waiting > q.limit {
		q.turnAway()
	}
	q.mu.Unlock()

	var enough <-chan time.Time
	if w.lane.caller.outside {
		timer := time.NewTimer(q.patience)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case <-w.over:
		if w.err != nil {
			return nil, w.err
		}
		return q.pass, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-enough:
		err = errWaitedTooLong
	}
	q.mu.Lock()
	select {
	case <-w.over:
		q.mu.Unlock()
		if w.err == nil {
			// The turn came in the same moment: pass it on.
			q.pass()
		}
	default:
		if errors.Is(err, errWaitedTooLong) {
			q.refused++
		}
		q.leave(w, err)
		q.mu.Unlock()
	}
	return nil, err
}

// enter has one more operation wait. The caller holds the lock.
func (q *queue) enter(c caller) *waiter {
	l := q.lanes[c]
	if l == nil {
		l = &lane{caller: c}
		l.place = q.round.PushBack(l)
		q.lanes[c] = l
	}
	w := &waiter{lane: l, over: make(chan struct{})}
	w.place = l.waiters.PushBack(w)
	q.waiting++
	return w
}

// leave ends a wait. The caller holds the lock.
func (q *queue) leave(w *waiter, err error) {
	w.lane.waiters.Remove(w.place)
	if w.lane.waiters.Len() == 0 {
		q.round.Remove(w.lane.place)
		delete(q.lanes, w.lane.caller)
	}
	q.waiting--
	w.err = err
	close(w.over)
}

// turnAway ends the wait of the last of the longest lane; of several, of that
// whose turn is last. The caller holds the lock.
func (q *queue) turnAway() {
	var longest *lane
	for e := q.round.Back(); e != nil; e = e.Prev() {
		if l := e.Value.(*lane); longest == nil || l.waiters.Len() > longest.waiters.Len() {
			longest = l
		}
	}
	q.refused++
	q.leave(longest.waiters.Back().Value.(*waiter), errQueueFull)
}

// pass gives the turn to the first of the next lane, which is the last from
// then on.
func (q *queue) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.round.Front()
	if next == nil {
		q.taken = false
		return
	}
	q.round.MoveToBack(next)
	q.leave(next.Value.(*lane).waiters.Front().Value.(*waiter), nil)
}

// queueState is what can be told of a queue.
type queueState struct {
	// waiting operations are for so many callers.
	waiting, callers int
	// refused counts the operations that were turned away.
	refused uint64
}

func (q *queue) state() queueState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return queueState{waiting: q.waiting, callers: len(q.lanes), refused: q.refused}
}
