//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/waittest"
)

// namespace is a context of a caller.
func namespace(ctx context.Context, name string) context.Context {
	return onBehalfOf(ctx, owner{Cluster: "cluster", Namespace: name})
}

// crowd asks for turns at a queue whose turn it has itself, one after the
// other, and takes them down as they come.
type crowd struct {
	t     testing.TB
	queue *queue
	next  func()
	came  chan string
	err   chan error
}

func newCrowd(t testing.TB, limit int) *crowd {
	t.Helper()
	c := &crowd{t: t, queue: newQueue(limit, maxWait), came: make(chan string), err: make(chan error, 1000)}
	var err error
	if c.next, err = c.queue.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask has an operation wait.
func (c *crowd) ask(ctx context.Context, label string) {
	before := c.queue.depth()
	go func() {
		done, err := c.queue.take(ctx)
		if err != nil {
			c.err <- fmt.Errorf("%s: %w", label, err)
			return
		}
		c.next = done
		c.came <- label
	}()
	// When it is full, somebody is turned away instead.
	waittest.Until(c.t, "it waits", func() bool { return c.queue.depth() > before || len(c.err) > 0 })
}

// turn passes the turn on, and tells to whom.
func (c *crowd) turn() string {
	c.next()
	return <-c.came
}

func TestCallersTakeTurnsHoweverMuchOneAsksFor(t *testing.T) {
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
	c.ask(onBehalfOf(t.Context(), owner{Cluster: "another", Namespace: "default"}), "there")
	c.ask(onBehalfOf(t.Context(), owner{}), "nobody's")
	c.ask(t.Context(), "lvmd's")
	for _, want := range []string{"here-0", "there", "nobody's", "lvmd's", "here-1"} {
		if got := c.turn(); got != want {
			t.Errorf("%s has the turn, want %s", got, want)
		}
	}
}

func TestAFullQueueTurnsAwayTheLastOfWhoeverHasTheMostWaiting(t *testing.T) {
	c := newCrowd(t, 3)
	for i := range 3 {
		c.ask(namespace(t.Context(), "busy"), fmt.Sprintf("busy-%d", i))
	}
	c.ask(namespace(t.Context(), "other"), "other-0")
	if err := <-c.err; !errors.Is(err, errQueueFull) || err.Error()[:6] != "busy-2" {
		t.Errorf("error %v", err)
	}
	// Two callers of two and one: the larger one gives way to a third.
	c.ask(namespace(t.Context(), "third"), "third-0")
	if err := <-c.err; !errors.Is(err, errQueueFull) || err.Error()[:6] != "busy-1" {
		t.Errorf("error %v", err)
	}
	// Now all have one: none gives way.
	if _, err := c.queue.take(namespace(t.Context(), "fourth")); !errors.Is(err, errQueueFull) {
		t.Errorf("error %v", err)
	}
	if state := c.queue.state(); state != (queueState{waiting: 3, callers: 3, refused: 3}) {
		t.Errorf("%+v", state)
	}
	for _, want := range []string{"busy-0", "other-0", "third-0"} {
		if got := c.turn(); got != want {
			t.Errorf("%s has the turn, want %s", got, want)
		}
	}
}

// lanesModel is what a queue should do, said in another way: each caller's
// waiters, and the callers in the order of their turns.
type lanesModel struct {
	waiting map[string][]string
	round   []string
}

func TestTurnsAreSharedFairlyWhateverHappens(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		const limit = 6
		c := newCrowd(t, limit)
		m := lanesModel{waiting: map[string][]string{}}
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
				if err := <-c.err; !errors.Is(err, errQueueFull) || err.Error() != fmt.Sprintf("%s: %v", last, errQueueFull) {
					r.Fatalf("turned away: %v, want %s", err, last)
				}
				remove(most, last)
			},
			"give up": func(r *rapid.T) {
				if total() == 0 {
					r.Skip("nobody waits")
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
					r.Skip("nobody waits")
				}
				name := m.round[0]
				label := m.waiting[name][0]
				m.round = append(m.round[1:], name)
				remove(name, label)
				if got := c.turn(); got != label {
					r.Fatalf("%s has the turn, want %s", got, label)
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
			remove(name, c.turn()) // In order or not: nobody is lost.
		}
		c.next()
		if c.queue.taken || len(c.queue.lanes) != 0 || c.queue.round.Len() != 0 {
			r.Fatalf("something is left: %+v", c.queue)
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// turnLog notes for which volume each creation and growth is, in the order of
// their turns, and holds them back until it is released.
type turnLog struct {
	lvm.Groups
	on      atomic.Bool
	release chan struct{}
	mu      sync.Mutex
	ids     []string
}

func (l *turnLog) note(id string) {
	if !l.on.Load() {
		return
	}
	l.mu.Lock()
	l.ids = append(l.ids, id)
	l.mu.Unlock()
	<-l.release
}

func (l *turnLog) Create(ctx context.Context, o lvm.CreateOptions) error {
	l.note(o.Volume)
	return l.Groups.Create(ctx, o)
}

func (l *turnLog) Extend(ctx context.Context, group, volume string, extents int64, on ...lvm.Share) error {
	l.note(volume)
	return l.Groups.Extend(ctx, group, volume, extents, on...)
}

func TestANamespaceDoesNotWaitForAllThatAnotherAsksFor(t *testing.T) {
	m := newMachine(t)
	turns := &turnLog{release: make(chan struct{})}
	d := m.start(t, func(_ *daemon, o *Options) {
		turns.Groups = o.LVM
		o.LVM = turns
	})
	grown := d.create(fsRequest("grown", 1, "ext4"))
	owners := map[string]string{grown.GetId(): "ns"}
	turns.on.Store(true)
	waits := func(namespace string, want int) {
		t.Helper()
		q := d.model.groups[testGroup].turns
		waittest.Until(t, namespace+" waits", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			l := q.lanes[caller{cluster: "cluster", namespace: namespace, outside: true}]
			return l != nil && l.waiters.Len() == want
		})
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	in := func(namespace, name string) {
		r := request(name, 1)
		r.Owner.ClaimNamespace = namespace
		wg.Go(func() {
			created, err := d.client.CreateVolume(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			owners[created.GetVolume().GetId()] = namespace
		})
	}
	for i := range 6 {
		in("busy", fmt.Sprintf("busy-%d", i))
	}
	waits("busy", 5)
	in("other", "other-0")
	in("other", "other-1")
	waits("other", 2)
	wg.Go(func() {
		if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: grown.GetId(), RequiredBytes: grown.GetSizeBytes() + testExtent}); err != nil {
			t.Error(err)
		}
	})
	waits("ns", 1)
	told := samples(t, d.Service)
	if waiting, callers := told["queue_depth{group=carve}"], told["queue_callers{group=carve}"]; waiting != 8 || callers != 3 {
		t.Errorf("the metrics tell of %v operations for %v callers that wait", waiting, callers)
	}
	close(turns.release)
	wg.Wait()
	var order []string
	for _, id := range turns.ids {
		order = append(order, owners[id])
	}
	want := []string{"busy", "busy", "other", "ns", "busy", "other", "busy", "busy", "busy"}
	if !slices.Equal(order, want) {
		t.Errorf("the turns went to %v, want %v", order, want)
	}
}
