//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// depth counts those who wait.
func (q *queue) depth() int { return q.state().waiting }

func TestTurnsComeInTheOrderOfAsking(t *testing.T) {
	q := newQueue(100, maxWait)
	first := must.Get(q.take(t.Context()))(t)
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			done, err := q.take(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			done()
		})
		waittest.Until(t, "it waits", func() bool { return q.depth() == i+1 })
	}
	first()
	wg.Wait()
	if !slices.IsSorted(order) || len(order) != 20 || q.depth() != 0 {
		t.Errorf("order %v, %d wait", order, q.depth())
	}
}

func TestWhoeverGivesUpWaitingIsPassedOver(t *testing.T) {
	q := newQueue(100, maxWait)
	first := must.Get(q.take(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := q.take(ctx)
		gaveUp <- err
	}()
	waittest.Until(t, "it waits", func() bool { return q.depth() == 1 })
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	first()
	done := must.Get(q.take(t.Context()))(t)
	done()
	if _, err := q.take(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller gets %v", err)
	}
}

func TestTooManyWaitersAreRefusedAtOnce(t *testing.T) {
	q := newQueue(1, maxWait)
	done := must.Get(q.take(t.Context()))(t)
	go func() {
		if second, err := q.take(t.Context()); err == nil {
			second()
		}
	}()
	waittest.Until(t, "one waits", func() bool { return q.depth() == 1 })
	if _, err := q.take(t.Context()); !errors.Is(err, errQueueFull) {
		t.Errorf("error %v", err)
	}
	done()
}

func TestNoTwoHaveTheTurnAndNoneIsLost(t *testing.T) {
	q := newQueue(1000, maxWait)
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
			if i%3 == 0 {
				ctx = t.Context()
			}
			defer cancel()
			done, err := q.take(ctx)
			if err != nil {
				return
			}
			if holders.Add(1) != 1 {
				t.Error("two have the turn")
			}
			time.Sleep(50 * time.Microsecond)
			turns.Add(1)
			holders.Add(-1)
			done()
		})
	}
	wg.Wait()
	if turns.Load() < 67 || q.depth() != 0 {
		t.Errorf("%d turns, %d wait", turns.Load(), q.depth())
	}
	done := must.Get(q.take(t.Context()))(t)
	done()
}

func TestAWaitThatSomebodyAskedForEndsInTheEnd(t *testing.T) {
	q := newQueue(100, time.Millisecond)
	first, err := q.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := make(chan error, 1)
	go func() {
		done, err := q.take(t.Context())
		if err == nil {
			done()
		}
		own <- err
	}()
	waittest.Until(t, "lvmd itself waits", func() bool { return q.depth() == 1 })
	_, err = q.take(namespace(t.Context(), "patient"))
	if !errors.Is(err, errWaitedTooLong) {
		t.Errorf("error %v", err)
	}
	if state := q.state(); state != (queueState{waiting: 1, callers: 1, refused: 1}) {
		t.Errorf("%+v", state)
	}
	first()
	if err := <-own; err != nil {
		t.Errorf("lvmd itself: %v", err)
	}
	wantCode(t, publicError("creating", errWaitedTooLong), codes.Aborted, names.ReasonOperationPending)
}

// TestACallerWithoutADeadlineIsAnsweredWhileTheGroupIsHeldUp: and nothing of what
// it asked for is left.
func TestACallerWithoutADeadlineIsAnsweredWhileTheGroupIsHeldUp(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	g := d.model.groups[testGroup]
	g.turns.mu.Lock()
	g.turns.patience = time.Millisecond
	g.turns.mu.Unlock()
	done, err := g.turns.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := d.available()
	_, err = d.client.CreateVolume(t.Context(), request("a", 1))
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	if got := d.available(); got != all || len(d.list()) != 0 {
		t.Errorf("%d of %d extents are available, volumes %v", got, all, d.list())
	}
	done()
	d.delete(d.create(request("a", 1)).GetId())
	d.checkClean()
}
