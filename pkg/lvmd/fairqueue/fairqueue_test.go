package fairqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/rapidtest"
	"github.com/carve-csi/carve/pkg/waittest"
)

const testTimeout = 10 * time.Minute

func (q *Queue) depth() int { return q.State().Waiting }

func TestTheSlotIsGivenInTheOrderOfAsking(t *testing.T) {
	q := New(100, testTimeout)
	first := must.Get(q.Acquire(t.Context()))(t)
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			done, err := q.Acquire(t.Context())
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

// Every tenant asks again right after its turn.
func TestTheDaemonsOwnWorkDoesNotWaitForAllTenants(t *testing.T) {
	const tenants = 3 * MaxTenantTurns
	q := New(100, testTimeout)
	release := must.Get(q.Acquire(t.Context()))(t)
	var own, between, most atomic.Int32
	var wg sync.WaitGroup
	for n := range tenants {
		wg.Go(func() {
			ctx := WithTenant(t.Context(), Tenant{Namespace: fmt.Sprint(n)})
			for own.Load() < 5 {
				done := must.Get(q.Acquire(ctx))(t)
				waittest.Until(t, "all others wait", func() bool { return own.Load() == 5 || q.depth() == tenants })
				if own.Load() < 5 {
					most.Store(max(most.Load(), between.Add(1)))
				}
				done()
			}
		})
	}
	wg.Go(func() {
		for own.Load() < 5 {
			done := must.Get(q.Acquire(t.Context()))(t)
			between.Store(0)
			own.Add(1)
			done()
		}
	})
	waittest.Until(t, "all wait", func() bool { return q.depth() == tenants+1 })
	release()
	wg.Wait()
	if most.Load() > MaxTenantTurns {
		t.Errorf("the daemon's own work waited for %d turns of tenants, want at most %d", most.Load(), MaxTenantTurns)
	}
}

func TestAnAbandonedWaitIsPassedOver(t *testing.T) {
	q := New(100, testTimeout)
	first := must.Get(q.Acquire(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := q.Acquire(ctx)
		gaveUp <- err
	}()
	waittest.Until(t, "it waits", func() bool { return q.depth() == 1 })
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	first()
	done := must.Get(q.Acquire(t.Context()))(t)
	done()
	if _, err := q.Acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller gets %v", err)
	}
}

func TestTooManyWaitersAreRefusedAtOnce(t *testing.T) {
	q := New(1, testTimeout)
	done := must.Get(q.Acquire(t.Context()))(t)
	go func() {
		if second, err := q.Acquire(t.Context()); err == nil {
			second()
		}
	}()
	waittest.Until(t, "one waits", func() bool { return q.depth() == 1 })
	if _, err := q.Acquire(t.Context()); !errors.Is(err, ErrFull) {
		t.Errorf("error %v", err)
	}
	done()
}

func TestNoTwoHaveTheSlotAndNoWaiterIsLost(t *testing.T) {
	q := New(1000, testTimeout)
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
			if i%3 == 0 {
				ctx = t.Context()
			}
			defer cancel()
			done, err := q.Acquire(ctx)
			if err != nil {
				return
			}
			if holders.Add(1) != 1 {
				t.Error("two have the slot")
			}
			time.Sleep(50 * time.Microsecond)
			turns.Add(1)
			holders.Add(-1)
			done()
		})
	}
	wg.Wait()
	if turns.Load() < 67 || q.depth() != 0 {
		t.Errorf("%d were served, %d wait", turns.Load(), q.depth())
	}
	done := must.Get(q.Acquire(t.Context()))(t)
	done()
}

func TestATenantsWaitEnds(t *testing.T) {
	q := New(100, time.Millisecond)
	first, err := q.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := make(chan error, 1)
	go func() {
		done, err := q.Acquire(t.Context())
		if err == nil {
			done()
		}
		own <- err
	}()
	waittest.Until(t, "lvmd itself waits", func() bool { return q.depth() == 1 })
	_, err = q.Acquire(namespace(t.Context(), "tenant"))
	if !errors.Is(err, ErrTimedOut) {
		t.Errorf("error %v", err)
	}
	if state := q.State(); state != (State{Waiting: 1, Rejected: 1}) {
		t.Errorf("%+v", state)
	}
	first()
	if err := <-own; err != nil {
		t.Errorf("lvmd itself: %v", err)
	}
}

func namespace(ctx context.Context, name string) context.Context {
	return WithTenant(ctx, Tenant{Cluster: "cluster", Namespace: name})
}

// crowd asks for turns at a queue whose slot it holds, one by one, and records their order.
type crowd struct {
	t     testing.TB
	queue *Queue
	next  func()
	came  chan string
	err   chan error
}

func newCrowd(t testing.TB, limit int) *crowd {
	t.Helper()
	c := &crowd{t: t, queue: New(limit, testTimeout), came: make(chan string), err: make(chan error, 1000)}
	var err error
	if c.next, err = c.queue.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *crowd) ask(ctx context.Context, label string) {
	before := c.queue.depth()
	go func() {
		done, err := c.queue.Acquire(ctx)
		if err != nil {
			c.err <- fmt.Errorf("%s: %w", label, err)
			return
		}
		c.next = done
		c.came <- label
	}()
	// If the queue is full, one is rejected instead.
	waittest.Until(c.t, "it waits", func() bool { return c.queue.depth() > before || len(c.err) > 0 })
}

// turn passes the slot on, and returns the label of its next holder.
func (c *crowd) turn() string {
	c.next()
	return <-c.came
}

func TestCallersAreServedRoundRobinHoweverMuchOneAsksFor(t *testing.T) {
	c := newCrowd(t, 100)
	for i := range 5 {
		c.ask(namespace(t.Context(), "busy"), fmt.Sprintf("busy-%d", i))
	}
	c.ask(namespace(t.Context(), "other"), "other-0")
	c.ask(t.Context(), "lvmd-0")
	c.ask(namespace(t.Context(), "other"), "other-1")
	var order []string
	for range 8 {
		order = append(order, c.turn())
	}
	want := []string{"busy-0", "other-0", "lvmd-0", "busy-1", "other-1", "busy-2", "busy-3", "busy-4"}
	if !slices.Equal(order, want) || c.queue.depth() != 0 {
		t.Errorf("%v, want %v; %d wait", order, want, c.queue.depth())
	}
}

func TestTheSameNamespaceOfAnotherClusterIsAnotherCaller(t *testing.T) {
	c := newCrowd(t, 100)
	c.ask(namespace(t.Context(), "default"), "here-0")
	c.ask(namespace(t.Context(), "default"), "here-1")
	c.ask(WithTenant(t.Context(), Tenant{Cluster: "another", Namespace: "default"}), "there")
	c.ask(WithTenant(t.Context(), Tenant{}), "no tenant's")
	c.ask(t.Context(), "lvmd's")
	for _, want := range []string{"here-0", "there", "no tenant's", "lvmd's", "here-1"} {
		if got := c.turn(); got != want {
			t.Errorf("%s has the slot, want %s", got, want)
		}
	}
}

func TestAFullQueueRejectsTheLatestOfTheCallerWithTheMostWaiting(t *testing.T) {
	c := newCrowd(t, 3)
	for i := range 3 {
		c.ask(namespace(t.Context(), "busy"), fmt.Sprintf("busy-%d", i))
	}
	c.ask(namespace(t.Context(), "other"), "other-0")
	if err := <-c.err; !errors.Is(err, ErrFull) || err.Error()[:6] != "busy-2" {
		t.Errorf("error %v", err)
	}
	// Two callers of two and one: the larger one gives way to a third.
	c.ask(namespace(t.Context(), "third"), "third-0")
	if err := <-c.err; !errors.Is(err, ErrFull) || err.Error()[:6] != "busy-1" {
		t.Errorf("error %v", err)
	}
	// Now each has one: none gives way.
	if _, err := c.queue.Acquire(namespace(t.Context(), "fourth")); !errors.Is(err, ErrFull) {
		t.Errorf("error %v", err)
	}
	if state := c.queue.State(); state != (State{Waiting: 3, Rejected: 3}) {
		t.Errorf("%+v", state)
	}
	for _, want := range []string{"busy-0", "other-0", "third-0"} {
		if got := c.turn(); got != want {
			t.Errorf("%s has the slot, want %s", got, want)
		}
	}
}

// linesModel is the reference: each caller's waiters, and the callers in the order of their turns.
type linesModel struct {
	waiting map[string][]string
	round   []string
}

func TestTheSlotIsSharedFairlyWhateverHappens(t *testing.T) {
	rapidtest.Set(t, map[string]string{"checks": "25"})
	rapid.Check(t, func(r *rapid.T) {
		const limit = 6
		c := newCrowd(t, limit)
		m := linesModel{waiting: map[string][]string{}}
		cancels := map[string]context.CancelFunc{}
		n := 0
		remove := func(name, label string) {
			m.waiting[name] = slices.DeleteFunc(m.waiting[name], func(l string) bool { return l == label })
			if len(m.waiting[name]) == 0 {
				m.round = slices.DeleteFunc(m.round, func(l string) bool { return l == name })
			}
		}
		total := func() (n int) {
			for _, w := range m.waiting {
				n += len(w)
			}
			return n
		}
		callers := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		r.Repeat(map[string]func(*rapid.T){
			"ask": func(r *rapid.T) {
				name := callers.Draw(r, "caller")
				n++
				label := fmt.Sprintf("%s%d", name, n)
				ctx, cancel := context.WithCancel(namespace(t.Context(), name))
				cancels[label] = cancel
				c.ask(ctx, label)
				if len(m.waiting[name]) == 0 {
					m.round = append(m.round, name)
				}
				m.waiting[name] = append(m.waiting[name], label)
				if total() <= limit {
					return
				}
				most := ""
				for _, other := range m.round {
					if most == "" || len(m.waiting[other]) >= len(m.waiting[most]) {
						most = other
					}
				}
				last := m.waiting[most][len(m.waiting[most])-1]
				if err := <-c.err; !errors.Is(err, ErrFull) || err.Error() != fmt.Sprintf("%s: %v", last, ErrFull) {
					r.Fatalf("rejected: %v, want %s", err, last)
				}
				remove(most, last)
			},
			"give up": func(r *rapid.T) {
				if total() == 0 {
					r.Skip("none waits")
				}
				name := rapid.SampledFrom(m.round).Draw(r, "caller")
				label := rapid.SampledFrom(m.waiting[name]).Draw(r, "operation")
				cancels[label]()
				if err := <-c.err; !errors.Is(err, context.Canceled) {
					r.Fatalf("gave up: %v", err)
				}
				remove(name, label)
			},
			"turn": func(r *rapid.T) {
				if total() == 0 {
					r.Skip("none waits")
				}
				name := m.round[0]
				label := m.waiting[name][0]
				m.round = append(m.round[1:], name)
				remove(name, label)
				if got := c.turn(); got != label {
					r.Fatalf("%s has the slot, want %s", got, label)
				}
			},
			"": func(r *rapid.T) {
				if got := c.queue.depth(); got != total() || got > limit {
					r.Fatalf("%d wait, want %d", got, total())
				}
			},
		})
		for total() > 0 {
			name := m.round[0]
			m.round = append(m.round[1:], name)
			remove(name, c.turn()) // In order or not: none is lost.
		}
		c.next()
		if c.queue.held || len(c.queue.lines) != 0 || c.queue.round.Len() != 0 {
			r.Fatalf("something is left: %+v", c.queue)
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}
