// Package waittest waits, in tests, for what other goroutines and processes do.
package waittest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	// Limit bounds every wait. It is far more than anything takes that is waited for, on a
	// loaded machine that is emulated, too: a test that reaches it has found a mistake.
	Limit = 2 * time.Minute
	// A condition is asked for after shortPause at first, and more and more rarely, but each
	// longPause, the longer a test waits: many ask a process or run a command, which takes the
	// processor from what is waited for.
	shortPause, longPause = 5 * time.Millisecond, 100 * time.Millisecond
)

// Until waits until cond reports true. After Limit it fails the test with what was waited
// for, and with what each of state returns then.
func Until(t testing.TB, what string, cond func() bool, state ...func() any) {
	t.Helper()
	if missed := within(Limit, what, cond, state...); missed != "" {
		t.Fatal(missed)
	}
}

// Succeeds waits until check returns no error. After Limit it fails the test with what was
// waited for, and with the last error.
func Succeeds(t testing.TB, what string, check func() error) {
	t.Helper()
	var last error
	Until(t, what, func() bool { last = check(); return last == nil }, func() any { return last })
}

// within returns what a test is to fail with, or nothing.
func within(limit time.Duration, what string, cond func() bool, state ...func() any) string {
	for begin := time.Now(); !cond(); time.Sleep(pause(time.Since(begin))) {
		if time.Since(begin) < limit {
			continue
		}
		var message strings.Builder
		fmt.Fprintf(&message, "not within %v: %s", limit, what)
		for _, one := range state {
			fmt.Fprintf(&message, "\nat last: %v", one())
		}
		return message.String()
	}
	return ""
}

// pause is how long a test waits that has waited so long already.
func pause(waited time.Duration) time.Duration {
	return max(shortPause, min(waited/20, longPause))
}
