package workloop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func tenantOf(key string) string {
	tenant, _, _ := strings.Cut(key, "/")
	return tenant
}

func TestTenantsTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newRoundRobin(tenantOf)
		waiting := map[string][]string{}
		var served []string // tenants, since the last push
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				tenant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")
				key := tenant + "/" + strings.Repeat("x", next)
				next++
				q.Push(key)
				waiting[tenant] = append(waiting[tenant], key)
				served = nil
			},
			"pop": func(t *rapid.T) {
				if q.Len() == 0 {
					return
				}
				key := q.Pop()
				tenant := tenantOf(key)
				if len(waiting[tenant]) == 0 || waiting[tenant][0] != key {
					t.Fatalf("popped %q, want the first of %v", key, waiting[tenant])
				}
				waiting[tenant] = waiting[tenant][1:]
				for other, keys := range waiting {
					if other != tenant && len(keys) > 0 && !slices.Contains(served, other) && slices.Contains(served, tenant) {
						t.Fatalf("tenant %s had a second turn before %s, which waits with %v, had one", tenant, other, keys)
					}
				}
				served = append(served, tenant)
				if turns := 3; len(served) == turns {
					served = nil
				}
			},
			"": func(t *rapid.T) {
				want := 0
				for _, keys := range waiting {
					want += len(keys)
				}
				if q.Len() != want {
					t.Fatalf("the queue has %d keys, want %d", q.Len(), want)
				}
			},
		})
	})
}

func loop(t *testing.T, o Options[string]) (l *Loop[string], stop func()) {
	t.Helper()
	o.RetryMin, o.RetryMax = time.Second, 4*time.Second
	l = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { l.Run(ctx); close(done) }()
	return l, sync.OnceFunc(func() { cancel(); <-done })
}

func TestKeysThatWaitOutsideHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		var inside, most, done int
		var l *Loop[string]
		l, stop := loop(t, Options[string]{Parallel: 2, Work: func(_ context.Context, key string) (time.Duration, error) {
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			if tenantOf(key) == "slow" {
				mu.Lock()
				inside--
				mu.Unlock()
				l.Outside(func() { <-release })
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
			}
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			inside--
			done++
			return 0, nil
		}})
		defer stop()
		const slow, fast = 50, 10
		for i := range slow {
			l.Add("slow/" + strings.Repeat("x", i))
		}
		for i := range fast {
			l.Add("fast/" + strings.Repeat("x", i))
		}
		time.Sleep(fast * time.Second) // two at a time
		synctest.Wait()
		if done != fast {
			t.Errorf("while %d keys wait outside, %d are done, want %d", slow, done, fast)
		}
		close(release)
		time.Sleep(slow * time.Second)
		synctest.Wait()
		if done != slow+fast || most > 2 {
			t.Errorf("%d keys are done, want %d; %d were worked on at a time, want at most 2", done, slow+fast, most)
		}
	})
}

func TestAKeyThatWasOutsideGoesOnThoughNoOtherComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := false
		var l *Loop[string]
		l, stop := loop(t, Options[string]{Parallel: 1, Work: func(context.Context, string) (time.Duration, error) {
			l.Outside(func() { time.Sleep(time.Second) })
			done = true
			return 0, nil
		}})
		defer stop()
		l.Add("k")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !done {
			t.Error("the key does not go on")
		}
	})
}

func TestAKeyThatFailsIsWorkedOnAgainLaterEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var failures []int
		began := time.Now()
		broken := errors.New("broken")
		var l *Loop[string]
		l, stop := loop(t, Options[string]{
			Parallel: 1,
			Work: func(context.Context, string) (time.Duration, error) {
				at = append(at, time.Since(began))
				failures = append(failures, l.Failures("k"))
				switch len(at) {
				case 1, 2, 3:
					return 0, broken
				case 4:
					return time.Minute, nil
				}
				return 0, nil
			},
			Failed: func(_ context.Context, key string, err error) {
				if key != "k" || !errors.Is(err, broken) {
					t.Errorf("key %q failed with %v, want k with %v", key, err, broken)
				}
			},
		})
		defer stop()
		l.Add("k")
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 67 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("the key was worked on at %v, want %v", at, want)
		}
		if want := []int{0, 1, 2, 3, 0}; !slices.Equal(failures, want) {
			t.Errorf("it had failed %v times, want %v", failures, want)
		}
	})
}

func TestTheEndWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		l, stop := loop(t, Options[string]{Parallel: 3, Work: func(ctx context.Context, _ string) (time.Duration, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return 0, ctx.Err()
		}, Failed: func(_ context.Context, key string, err error) { t.Errorf("%s failed: %v", key, err) }})
		l.Add("k")
		synctest.Wait()
		stop()
		if !ended {
			t.Error("the loop ended before its work")
		}
	})
}

// A leader keeps its lease until its loops have ended.
func TestNoKeyIsWorkedOnAfterTheEnd(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	var worked atomic.Int32
	l := New(Options[string]{Parallel: 1, RetryMin: time.Second, RetryMax: time.Second, Work: func(context.Context, string) (time.Duration, error) {
		worked.Add(1)
		end()
		return 0, nil
	}})
	for _, key := range []string{"a/1", "a/2", "a/3"} {
		l.Add(key)
	}
	l.Run(ctx)
	if n := worked.Load(); n != 1 {
		t.Errorf("%d keys were worked on, want the first alone", n)
	}
}

func TestAKeyThatIsAddedOftenForLaterIsWorkedOnOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var worked []time.Duration
		loop := New(Options[string]{Parallel: 1, RetryMin: time.Second, RetryMax: time.Second, Work: func(context.Context, string) (time.Duration, error) {
			worked = append(worked, time.Since(began))
			return 0, nil
		}})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { loop.Run(ctx) })
		for range 10 {
			for range 100 {
				loop.AddAfter("key", time.Second)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		stop()
		running.Wait()
		if want := []time.Duration{time.Second}; !slices.Equal(worked, want) {
			t.Errorf("added 1000 times within a second, for a second later: want work after %v, got %v", want, worked)
		}
	})
}
