package main

import (
	"strings"
	"testing"
	"time"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	values := []time.Duration{1, 2, 3, 4}
	for p, want := range map[int]time.Duration{1: 1, 25: 1, 50: 2, 51: 3, 100: 4} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %d: want %d, got %d", p, want, got)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("percentile of nothing: want 0, got %d", got)
	}
}

func TestTableShowsRatiosToEmptyDir(t *testing.T) {
	one := func(d time.Duration) []round {
		return []round{{started: []time.Duration{d}, bound: []time.Duration{d / 2}, all: d}}
	}
	var out strings.Builder
	(&table{burst: 2, emptyOne: one(time.Second), carveOne: one(3 * time.Second), emptyBurst: one(time.Second), carveBurst: one(2 * time.Second)}).print(&out)
	for _, want := range []string{"| create → Running, one Pod | 1s | 3s | 3.00 |", "| selected-node → bound, one claim | | 1.5s | |", "| volumes per second in the burst, first create to last bound | | 1.0 | |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want the line %q in\n%s", want, out.String())
		}
	}
}
