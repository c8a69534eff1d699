package blockdev

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// slowHandle answers a Sync when answers is closed, or ends the goroutine.
type slowHandle struct {
	Handle
	answers chan struct{}
	ends    bool
}

func (h slowHandle) Sync() error {
	<-h.answers
	if h.ends {
		runtime.Goexit()
	}
	return nil
}

func TestAnOperationThatIsSlowWaitsAndIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		answers time.Duration
		ends    bool
		waits   []bool
		gives   bool
	}{
		"quick":                {answers: time.Second},
		"slow":                 {answers: 30 * time.Second, waits: []bool{true, false}},
		"without an answer":    {answers: time.Hour, waits: []bool{true, false}, gives: true},
		"that ends in between": {answers: time.Second, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var guard Guard
				var waits []bool
				slow := slowHandle{answers: make(chan struct{}), ends: c.ends}
				h := Bound(slow, Bounds{
					Guard: &guard, Device: "d", Timeout: time.Minute, Look: 10 * time.Second,
					Waiting: func(waiting bool) { waits = append(waits, waiting) },
				})
				time.AfterFunc(c.answers, func() { close(slow.answers) })
				err := h.Sync()
				if errors.Is(err, ErrTimedOut) != c.gives || (err != nil) != (c.gives || c.ends) {
					t.Errorf("Sync: %v", err)
				}
				if len(waits) != len(c.waits) || len(waits) > 0 && (!waits[0] || waits[1]) {
					t.Errorf("it waited: %v, want %v", waits, c.waits)
				}
				if n := guard.Stuck(); n > 0 != c.gives {
					t.Errorf("%d operations are stuck", n)
				}
				time.Sleep(2 * time.Hour)
				if n := guard.Stuck(); n > 0 {
					t.Errorf("%d operations are stuck after the device answered", n)
				}
			})
		})
	}
}
