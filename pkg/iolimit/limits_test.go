package iolimit

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestLimitsSurviveTheirText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := func(label string, least, most uint64) uint64 {
			return rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(least, most)).Draw(t, label)
		}
		want := Limits{limit("rbps", MinBPS, MaxBPS), limit("wbps", MinBPS, MaxBPS), limit("riops", MinIOPS, MaxIOPS), limit("wiops", MinIOPS, MaxIOPS)}
		if got, err := Parse(want.String()); err != nil || got != want {
			t.Fatalf("%q becomes %+v, error %v", want, got, err)
		}
		if got := FromProto(want.Proto()); got != want {
			t.Fatalf("%+v becomes %+v by the API", want, got)
		}
	})
}

func TestLimitsOutOfTheirRangeAreRefused(t *testing.T) {
	for _, c := range []struct {
		limits Limits
		field  string
	}{
		{Limits{ReadBPS: MinBPS - 1}, "read_bps"},
		{Limits{WriteBPS: MaxBPS + 1}, "write_bps"},
		{Limits{ReadIOPS: MinIOPS - 1}, "read_iops"},
		{Limits{WriteIOPS: MaxIOPS + 1}, "write_iops"},
	} {
		var refused *RangeError
		if err := c.limits.Check(); !errors.As(err, &refused) || refused.Name != c.field {
			t.Errorf("%+v: %v, want %s refused", c.limits, err, c.field)
		}
	}
	for _, bad := range []string{"", "1", "0:0:0", "0:0:0:0:0", "x:0:0:0", "-1:0:0:0", "5:0:0:0"} {
		if l, err := Parse(bad); err == nil {
			t.Errorf("%q became %+v", bad, l)
		}
	}
}
