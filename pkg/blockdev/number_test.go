package blockdev

import "testing"

func TestNumbersAreReadAsTheyAreWritten(t *testing.T) {
	want := Number{Major: 253, Minor: 1048575}
	if got, err := ParseNumber(want.String()); err != nil || got != want {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
	for _, s := range []string{"", "253", ":", "253:", ":1", "a:1", "1:b", "-1:1", "4294967296:1", "1:2:3"} {
		if got, err := ParseNumber(s); err == nil {
			t.Errorf("%q is read as %v", s, got)
		}
	}
}
