package command

import (
	"strings"
	"testing"
)

func FuzzWordsKeepBothEnds(f *testing.F) {
	f.Add(10, "abcdefghijklmnop", 3)
	f.Fuzz(func(t *testing.T, limit int, s string, step int) {
		if limit < 2 || limit > 100 || step < 1 {
			return
		}
		b := &Words{Limit: limit}
		for rest := s; rest != ""; {
			n := min(step, len(rest))
			if w, err := b.Write([]byte(rest[:n])); w != n || err != nil {
				t.Fatalf("wrote %d of %d, error %v", w, n, err)
			}
			rest = rest[n:]
		}
		half := limit / 2
		got := b.String()
		if len(s) <= 2*half {
			if got != s {
				t.Errorf("%q became %q", s, got)
			}
			return
		}
		if !strings.HasPrefix(got, s[:half]) || !strings.HasSuffix(got, s[len(s)-half:]) {
			t.Errorf("of %q was kept %q", s, got)
		}
	})
}
