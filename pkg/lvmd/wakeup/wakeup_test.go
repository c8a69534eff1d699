package wakeup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitEndsWithTheSignalTheTimeOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := New()
		s.Set()
		s.Set() // Two are one.
		start := time.Now()
		if !s.Wait(ctx, start.Add(time.Hour)) || time.Since(start) != 0 {
			t.Errorf("a signal that was set did not wake: %s", time.Since(start))
		}
		if !s.Wait(ctx, start.Add(time.Hour)) || time.Since(start) != time.Hour {
			t.Errorf("woke after %s, want an hour", time.Since(start))
		}
		time.AfterFunc(24*time.Hour, s.Set)
		if !s.Wait(ctx, time.Time{}) || time.Since(start) != 25*time.Hour {
			t.Errorf("without a time, woke after %s", time.Since(start))
		}
		cancel()
		if s.Wait(ctx, time.Time{}) {
			t.Error("woke although the context is done")
		}
	})
}

func TestEarlierTakesZeroForNever(t *testing.T) {
	never, soon := time.Time{}, time.Now()
	late := soon.Add(time.Hour)
	for _, c := range []struct{ a, b, want time.Time }{
		{never, never, never}, {never, soon, soon}, {soon, never, soon}, {soon, late, soon}, {late, soon, soon},
	} {
		if got := Earlier(c.a, c.b); !got.Equal(c.want) {
			t.Errorf("of %s and %s: %s", c.a, c.b, got)
		}
	}
}
