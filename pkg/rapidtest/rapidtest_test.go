package rapidtest_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/rapidtest"
)

// checks counts how often a property is checked.
func checks(t *testing.T) (n int) {
	rapid.Check(t, func(*rapid.T) { n++ })
	return n
}

func TestSettingsEndWithTheTest(t *testing.T) {
	usual := checks(t)
	t.Run("one test", func(t *testing.T) {
		rapidtest.Set(t, map[string]string{"checks": "3"})
		if got := checks(t); got != 3 {
			t.Errorf("%d checks, want 3", got)
		}
	})
	if got := checks(t); got != usual {
		t.Errorf("%d checks in the next test, want %d", got, usual)
	}
}

func TestWhatTheCommandLineSaysStays(t *testing.T) {
	f := flag.Lookup("rapid.checks")
	before := f.Value.String()
	must.Succeed(t, f.Value.Set("7"))
	t.Cleanup(func() {
		if err := f.Value.Set(before); err != nil {
			t.Error(err)
		}
	})
	rapidtest.Set(t, map[string]string{"checks": "3"})
	if got := checks(t); got != 7 {
		t.Errorf("%d checks, want 7", got)
	}
}
