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
	pause = 5 * time.Millisecond
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
	for deadline := time.Now().Add(limit); !cond(); time.Sleep(pause) {
		if time.Now().Before(deadline) {
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
