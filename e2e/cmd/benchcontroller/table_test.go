package main

import (
	"strings"
	"testing"
	"time"
)

func TestTablesAreMarkdown(t *testing.T) {
	one := burst{pods: 2, all: time.Second, placed: []time.Duration{time.Second, 2 * time.Second}, bound: []time.Duration{time.Millisecond, 20 * time.Millisecond},
		failures: 3, writes: writes{"events": 3, "persistentvolumes": 4.25}, deleteAll: time.Minute}
	p := plan{nodes: 50, burst: 2, rounds: 1, singles: 2, fillNodes: 1, fillRate: 40}
	var out strings.Builder
	if err := printBursts(&out, p, []bursts{{single: &one, rounds: []burst{one}}, {setting: setting{createTime: 200 * time.Millisecond}, rounds: []burst{one}}}); err != nil {
		t.Fatal(err)
	}
	if err := printFilling(&out, p, []filling{{burst: one}, {setting: setting{clientRate: highRate}, burst: one}, {setting: setting{packed: true}, burst: one}}); err != nil {
		t.Fatal(err)
	}
	if err := printChurn(&out, p, []*churn{{churnPlan: churnPlan{pace: 10, time: time.Minute}, pods: 2, bound: one.bound}}); err != nil {
		t.Fatal(err)
	}
	rows := 0
	columns := 0
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		rows++
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		if n != columns || !strings.HasSuffix(line, "|\n") {
			t.Errorf("%d columns, want %d: %s", n-1, columns-1, line)
		}
	}
	if rows != 2+3+2+3+3 {
		t.Errorf("%d rows:\n%s", rows, out.String())
	}
	for _, cell := range []string{"0.5 per second", "2 at once", "200ms", "7.2: events 3.0, persistentvolumes 4.2", "defaults", "1000 per second", "one by one", "all alike", "20ms", "1m0s", "2 of 2"} {
		if !strings.Contains(out.String(), cell) {
			t.Errorf("no %q in\n%s", cell, out.String())
		}
	}
}
