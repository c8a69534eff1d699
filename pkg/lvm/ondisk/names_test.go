package ondisk

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAnyStringSurvivesATag(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if len(s) > 300 {
			s = s[:300]
		}
		e := EscapeTag(s)
		if !ValidTag("x=" + e) {
			t.Fatalf("%q becomes %q, which is no tag", s, e)
		}
		back, err := UnescapeTag(e)
		if err != nil || back != s {
			t.Fatalf("%q becomes %q and then %q, error %v", s, e, back, err)
		}
	})
	for _, bad := range []string{"#", "#0", "#G0", "#0G", "a#4A"} {
		if _, err := UnescapeTag(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestNamesAreHeldToLVMsRules(t *testing.T) {
	for _, good := range []string{"a", "carve-vg", "A+_.9", strings.Repeat("a", 127)} {
		if !ValidName(good) {
			t.Errorf("%q was refused", good)
		}
	}
	for _, bad := range []string{"", "-a", ".", "..", "a/b", "a b", "ä", strings.Repeat("a", 128)} {
		if ValidName(bad) {
			t.Errorf("%q was accepted", bad)
		}
	}
}
