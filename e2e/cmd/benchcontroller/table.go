package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func printBursts(out io.Writer, p plan, results []bursts) error {
	fmt.Fprintf(out, "\nPods with an ephemeral volume on %d nodes; of bursts, medians of %d:\n\n", p.nodes, p.rounds)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "create takes", "Kubernetes' own clients", "Pods", "Pods per second", "Pod created → placed, p50", "p99", "selected → bound, p50", "p99",
		"API writes per volume", "failures", "PV controller's alarms", "all deleted after")
	for _, r := range results {
		if r.single != nil {
			printRow(w, r.setting, fmt.Sprintf("%d, %g per second", p.singles, singleRate), []burst{*r.single})
		}
		printRow(w, r.setting, fmt.Sprintf("%d at once", p.burst), r.rounds)
	}
	return w.Flush()
}

func printRow(w io.Writer, s setting, pods string, rounds []burst) {
	row(w, s.createTime, s.rate(), pods,
		fmt.Sprintf("%.1f", middle(rounds, func(b burst) float64 { return float64(b.pods) / b.all.Seconds() })),
		short(middle(rounds, func(b burst) time.Duration { return quantile(b.placed, 50) })),
		short(middle(rounds, func(b burst) time.Duration { return quantile(b.placed, 99) })),
		short(middle(rounds, func(b burst) time.Duration { return quantile(b.bound, 50) })),
		short(middle(rounds, func(b burst) time.Duration { return quantile(b.bound, 99) })),
		fmt.Sprintf("%.1f", middle(rounds, func(b burst) float64 { return b.writes })),
		middle(rounds, func(b burst) int { return b.failures }),
		middle(rounds, func(b burst) int { return b.alarms }),
		short(middle(rounds, func(b burst) time.Duration { return b.deleteAll })))
}

func printFilling(out io.Writer, p plan, results []filling) error {
	fmt.Fprintf(out, "Filling nodes to the last byte:\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes become full", "Kubernetes' own clients", "nodes", "Pods", "Pods per second", "all placed after", "provisioning failures", "PV controller's alarms", "API writes per volume")
	for _, f := range results {
		row(w, f.order(), f.rate(), p.fillNodes, f.pods, p.fillRate, short(f.all), f.failures, f.alarms, fmt.Sprintf("%.1f", f.writes))
	}
	return w.Flush()
}

// header begins a Markdown table.
func header(w io.Writer, columns ...string) {
	fmt.Fprintf(w, "| %s\t\n", strings.Join(columns, "\t "))
	fmt.Fprintf(w, "|%s\n", strings.Repeat("---\t", len(columns)))
}

// row adds a row to it.
func row(w io.Writer, cells ...any) {
	fmt.Fprint(w, "|")
	for _, cell := range cells {
		fmt.Fprintf(w, " %v\t", cell)
	}
	fmt.Fprintln(w)
}

// middle returns the median of what f reads from the rounds.
func middle[T cmp.Ordered](rounds []burst, f func(burst) T) T {
	var all []T
	for _, r := range rounds {
		all = append(all, f(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// quantile returns the percent-th percentile of sorted durations.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func short(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }
