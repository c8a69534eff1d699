package main

import (
	"maps"
	"strings"
	"testing"
	"time"
)

func TestTablesAreMarkdown(t *testing.T) {
	one := burst{pods: 2, all: time.Second, placed: []time.Duration{time.Second, 2 * time.Second}, bound: []time.Duration{time.Millisecond, 20 * time.Millisecond},
		failures: 3, writes: writes{"events": 3, "persistentvolumes": 4.25}, deleteAll: time.Minute, scheduler: 9 * time.Millisecond}
	p := plan{nodes: 50, burst: 2, rounds: 1, singles: 2, fillNodes: 1, fillRate: 40}
	var out strings.Builder
	if err := printBursts(&out, p, []bursts{{single: &one, rounds: []burst{one}}, {setting: setting{createTime: 200 * time.Millisecond}, rounds: []burst{one}}}); err != nil {
		t.Fatal(err)
	}
	if err := printFilling(&out, p, []filling{{burst: one}, {setting: setting{clientRate: highRate}, burst: one}, {setting: setting{packed: true}, burst: one}}); err != nil {
		t.Fatal(err)
	}
	if err := printChurn(&out, []*churn{{churnPlan: churnPlan{pace: 10, time: time.Minute}, pods: 2, bound: one.bound}}); err != nil {
		t.Fatal(err)
	}
	s := scale{nodes: 50, bursts: []burst{one, one}, churn: &churn{churnPlan: churnPlan{pace: 20}}, clones: &cloning{all: 26 * time.Second, bound: one.bound, writes: one.writes}, hung: hung{withdrawn: 71 * time.Second}, both: comeback{writes: 7}}
	if err := printScale(&out, plan{scale: scalePlan{volumes: 20, held: 5}}, []scale{s, {nodes: 1000}}); err != nil {
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
	if rows != 2+3+2+3+3+2+2+2+2+2+2+2+1+2+1 {
		t.Errorf("%d rows:\n%s", rows, out.String())
	}
	for _, cell := range []string{"0.5 per second", "2 at once", "200ms", "7.2: events 3.0, persistentvolumes 4.2", "defaults", "1000 per second", "one by one", "all alike", "20ms", "1m0s", "2 of 2", "1m11s", "| 7 ", "4.5ms", "26s"} {
		if !strings.Contains(out.String(), cell) {
			t.Errorf("no %q in\n%s", cell, out.String())
		}
	}
}

func TestMetricsAreSummedUp(t *testing.T) {
	page, err := parseMetrics(strings.NewReader(`# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 5
apiserver_request_total{code="200",resource="pods",subresource="",verb="LIST"} 100
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 100
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := page.answered(), (writes{"pods": 4, "pods/status": 5}); !maps.Equal(got, want) {
		t.Errorf("writes are %v, want %v", got, want)
	}
	if seconds, err := page.value("process_cpu_seconds_total"); err != nil || seconds != 1.5 {
		t.Errorf("seconds are %v: %v", seconds, err)
	}
	if _, err := page.value("none"); err == nil {
		t.Error("a metric that is not there has a value")
	}
}
