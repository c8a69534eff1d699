// Package rapidtest sets the flags of package rapid for one test.
package rapidtest

import (
	"flag"
	"testing"
)

// Set sets flags of package rapid, by their names without the prefix "rapid.", until
// the test ends. A flag that has another value than its default keeps it: the command
// line, or a test around this one, has the last word. Tests that run in parallel must
// not use it.
func Set(t testing.TB, values map[string]string) {
	t.Helper()
	for name, value := range values {
		f := flag.Lookup("rapid." + name)
		if f == nil {
			t.Fatalf("package rapid has no flag %q", name)
			return
		}
		before := f.Value.String()
		if before != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			t.Fatalf("rapid.%s: %v", name, err)
		}
		t.Cleanup(func() {
			if err := f.Value.Set(before); err != nil {
				t.Errorf("rapid.%s: %v", name, err)
			}
		})
	}
}
