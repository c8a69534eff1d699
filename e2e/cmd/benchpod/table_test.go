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

func TestTheTableShowsRatiosToEmptyDir(t *testing.T) {
	of := func(d ...time.Duration) round {
		return round{placed: []time.Duration{d[0] / 2, d[0] / 2}, started: d, all: 2 * d[0], cpu: d[0]}
	}
	all := table{}
	all.add(2, 0, of(time.Second, 2*time.Second))
	all.add(2, 0, of(time.Second, 2*time.Second))
	carve := of(3*time.Second, 5*time.Second)
	carve.bound = []time.Duration{time.Second, time.Minute}
	carve.mounted = []time.Duration{time.Second, 4 * time.Second}
	all.add(2, 1, carve)
	all.add(2, 2, of(2*time.Second, 2*time.Second))
	all.add(2, 3, round{byHand: []time.Duration{20 * time.Second, 40 * time.Second}})
	all.add(3, 0, of(time.Second)) // An interrupted run has not measured the others.
	var out strings.Builder
	all.print(&out)
	for _, want := range []string{
		"| 2, 2 | emptyDir | 500ms | 1s (1.00) | 2s (1.00) |  |  |  |  | 1.0 (1.00) | 500ms |",
		"| 2, 1 | Carve, kube-scheduler | 1.5s | 3s (3.00) | 5s (2.50) | 1s | 1m0s | 1s | 33s (1.10) | 0.3 (0.33) | 1.5s |",
		"| 2, 1 | Carve, carve-scheduler | 1s | 2s (2.00) | 2s (1.00) |  |  |  |  | 0.5 (0.50) | 1s |",
		"| 2, 1 | by hand |  |  |  |  |  |  | 30s (1.00) |  |  |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want the line %q in\n%s", want, out.String())
		}
	}
}

func TestProcessorTimeLeavesOutWhatWasIdle(t *testing.T) {
	const stat = "cpu  10 1 5 1000 50 2 3 0 0 0\ncpu0 1 0 0 0\n"
	if got, err := parseStat(stat); err != nil || got != 210*time.Millisecond {
		t.Errorf("got %v, error %v, want 210ms: 21 ticks", got, err)
	}
	for _, malformed := range []string{"", "intr 1 2 3 4 5 6", "cpu 1 2 x 4 5 6"} {
		if got, err := parseStat(malformed); err == nil {
			t.Errorf("of %q: got %v, want an error", malformed, got)
		}
	}
}

func TestMountTimesAreThoseOfCallsThatSucceeded(t *testing.T) {
	const log = `{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"starting"}
{"msg":"NodeStageVolume","volume":"a","staging":"/s","duration":"30ms"}
{"msg":"NodeStageVolume failed","volume":"a","duration":"1s"}
{"msg":"NodePublishVolume","volume":"a","duration":"12ms"}
{"msg":"NodeUnpublishVolume","volume":"a","duration":"1h"}
{"msg":"NodeStageVolume","volume":"b","duration":"1ms"}
`
	sums := map[string]time.Duration{}
	if err := addMountTimes(strings.NewReader(log), sums); err != nil || len(sums) != 2 || sums["a"] != 42*time.Millisecond || sums["b"] != time.Millisecond {
		t.Errorf("got %v, error %v, want 42ms and 1ms", sums, err)
	}
}
