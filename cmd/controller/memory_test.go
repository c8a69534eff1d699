package main

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryIsLimitedByTheContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	const gib = 1 << 30
	for name, test := range map[string]struct {
		container   memlimit.Provider
		environment string
		want        int64
		log         string
	}{
		"a container with a limit":         {container: memlimit.Limit(gib), want: gib * 9 / 10, log: "gomemlimit=921.59Mi"},
		"one without":                      {container: noLimit, want: math.MaxInt64, log: "memory is not limited"},
		"one whose limit cannot be read":   {container: unreadable, want: 3 * gib, log: "set GOMEMLIMIT instead"},
		"an environment with a limit":      {container: memlimit.Limit(gib), environment: "3GiB", want: 3 * gib, log: "gomemlimit=3Gi"},
		"an environment, and none to read": {container: unreadable, environment: "3GiB", want: 3 * gib, log: "gomemlimit=3Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOMEMLIMIT", test.environment)
			if test.environment == "" {
				os.Unsetenv("GOMEMLIMIT") // t.Setenv restores it
			}
			debug.SetMemoryLimit(3 * gib) // as the runtime does with the variable
			var out strings.Builder
			limitMemory(slog.New(slog.NewTextHandler(&out, nil)), test.container)
			if got := debug.SetMemoryLimit(-1); got != test.want {
				t.Errorf("the limit is %d, want %d", got, test.want)
			}
			if !strings.Contains(out.String(), test.log) {
				t.Errorf("logged %q, want %q", out.String(), test.log)
			}
		})
	}
}

func noLimit() (uint64, error) { return 0, memlimit.ErrNoLimit }

func unreadable() (uint64, error) { return 0, errors.New("no cgroup") }
