package lvm

import "testing"

func TestTheKernelsWordsAboutRAIDAreRead(t *testing.T) {
	for _, c := range []struct {
		params string
		want   RAIDStatus
	}{
		{"raid1 2 AA 24576/24576 idle 0 0 -", RAIDStatus{Images: 2, Synced: 24576, Total: 24576, Action: "idle"}},
		{"raid5_ls 3 AAa 512/16384 recover 8 0 -", RAIDStatus{Images: 3, Behind: 1, Synced: 512, Total: 16384, Action: "recover", Mismatches: 8}},
		{"raid6_zr 5 aaD-a 0/8192 frozen 0 0 -", RAIDStatus{Images: 5, Failed: 2, Behind: 3, Total: 8192, Action: "frozen"}},
	} {
		if got, err := parseRAIDStatus(c.params); err != nil || got != c.want {
			t.Errorf("%q: %+v, want %+v, error %v", c.params, got, c.want, err)
		}
	}
	for _, bad := range []string{"", "raid1 2 AA", "raid1 2 AAA 1/1 idle 0", "raid1 x AA 1/1 idle 0", "raid1 2 A? 1/1 idle 0", "raid1 2 AA 11 idle 0", "raid1 2 AA a/1 idle 0", "raid1 2 AA 1/1 idle x"} {
		if s, err := parseRAIDStatus(bad); err == nil {
			t.Errorf("%q was understood as %+v", bad, s)
		}
	}
}

func TestPercentagesAreReadWithoutFractions(t *testing.T) {
	for text, want := range map[string]int64{"": 10000, "100.00": 10000, "0.00": 0, "12.34": 1234, "7": 700, "7.5": 750} {
		if got, err := parsePercent(text); err != nil || got != want {
			t.Errorf("%q: %d, want %d, error %v", text, got, want, err)
		}
	}
	for _, bad := range []string{"x", "101.00", "-5"} {
		if _, err := parsePercent(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
