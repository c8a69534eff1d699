package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// table holds every round that counts: by how many Pods are created at once, and then by kind.
type table map[int][][]round

// add adds a round of the kind with that index.
func (t table) add(pods, kind int, r round) {
	if t[pods] == nil {
		t[pods] = make([][]round, len(kinds))
	}
	t[pods][kind] = append(t[pods][kind], r)
}

// print writes the table as Markdown. Percentiles are those of the Pods of all rounds; what is in brackets is
// the ratio to the first kind, of volumes that to those made by hand.
func (t table) print(out io.Writer) {
	fmt.Fprintln(out, "| Pods at once, rounds | folder | created → placed, p50 | → Running, p50 | p99 | selected → bound, p50 | p99 | stage + publish, p50 | volume made and mounted, mean | Pods per second | nodes' processor time per Pod |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|---|")
	for _, pods := range slices.Sorted(maps.Keys(t)) {
		first, last := summaryOf(t[pods][0], pods), summaryOf(t[pods][len(kinds)-1], pods)
		for i, rounds := range t[pods] {
			if len(rounds) == 0 {
				continue // The run was interrupted.
			}
			s := summaryOf(rounds, pods)
			rate, cpu := fmt.Sprintf("%.1f (%.2f)", s.rate, s.rate/first.rate), shown(s.cpu).String()
			if kinds[i].byHand {
				rate, cpu = "", ""
			}
			fmt.Fprintf(out, "| %d, %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", pods, len(rounds), kinds[i].name,
				ifAny(s.placed, 50), beside(s.started, first.started, 50), beside(s.started, first.started, 99),
				ifAny(s.bound, 50), ifAny(s.bound, 99), ifAny(s.mounted, 50), besideMean(s.made, last.made), rate, cpu)
		}
	}
}

// summary is what all rounds of a kind say together.
type summary struct {
	placed, started, bound, mounted []time.Duration // sorted
	made                            time.Duration   // selected or begun to mounted, the mean per volume; zero without volumes
	rate                            float64         // Pods per second
	cpu                             time.Duration   // per Pod
}

func summaryOf(rounds []round, pods int) summary {
	var s summary
	var whole time.Duration
	for _, r := range rounds {
		s.placed, s.started, s.bound = append(s.placed, r.placed...), append(s.started, r.started...), append(s.bound, r.bound...)
		s.mounted = append(s.mounted, r.mounted...)
		for _, took := range slices.Concat(r.bound, r.mounted, r.byHand) {
			s.made += took
		}
		whole += r.all
		s.cpu += r.cpu
	}
	for _, values := range [][]time.Duration{s.placed, s.started, s.bound, s.mounted} {
		slices.Sort(values)
	}
	if len(rounds) == 0 {
		return s
	}
	count := len(rounds) * pods
	s.rate, s.cpu, s.made = float64(count)/whole.Seconds(), s.cpu/time.Duration(count), s.made/time.Duration(count)
	return s
}

// beside is a percentile with its ratio to that of others.
func beside(own, others []time.Duration, p int) string {
	if len(own) == 0 {
		return ""
	}
	value := percentile(own, p)
	return fmt.Sprintf("%v (%.2f)", shown(value), float64(value)/float64(percentile(others, p)))
}

// besideMean is a mean with its ratio to another, or nothing where there are no values.
func besideMean(own, other time.Duration) string {
	switch {
	case own == 0:
		return ""
	case other == 0: // The run was interrupted.
		return shown(own).String()
	}
	return fmt.Sprintf("%v (%.2f)", shown(own), own.Seconds()/other.Seconds())
}

// ifAny is a percentile, or nothing where there are no values.
func ifAny(values []time.Duration, p int) string {
	if len(values) == 0 {
		return ""
	}
	return shown(percentile(values, p)).String()
}

func shown(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// percentile returns the p-th percentile (nearest rank) of sorted values, zero
// when there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (p*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}
