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
		"API writes per volume", "failures", "PV controller's warnings", "all deleted after")
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
		middleWrites(rounds),
		middle(rounds, func(b burst) int { return b.failures }),
		middle(rounds, func(b burst) int { return b.warnings }),
		short(middle(rounds, func(b burst) time.Duration { return b.deleteAll })))
}

func printFilling(out io.Writer, p plan, results []filling) error {
	fmt.Fprintf(out, "Filling nodes to the last byte:\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes become full", "Kubernetes' own clients", "nodes", "Pods", "Pods per second", "all placed after", "provisioning failures", "PV controller's warnings", "API writes per volume")
	for _, f := range results {
		row(w, f.order(), f.rate(), p.fillNodes, f.pods, p.fillRate, short(f.all), f.failures, f.warnings, f.writes)
	}
	return w.Flush()
}

func printChurn(out io.Writer, p plan, results []*churn) error {
	fmt.Fprintf(out, "Pods with an ephemeral volume that come and go, on %d nodes:\n\n", p.nodes)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "Pods per second", "Kubernetes' own clients", "for", "each deleted after", "bound", "selected → bound, p50", "p99", "p50 of the first half", "p50 of the second half", "PV controller's warnings", "all gone after")
	for _, r := range results {
		row(w, r.pace, r.rate(), r.time, r.live, fmt.Sprintf("%d of %d", len(r.bound), r.pods),
			short(quantile(r.bound, 50)), short(quantile(r.bound, 99)), short(quantile(r.halves[0], 50)), short(quantile(r.halves[1], 50)), r.warnings, short(r.drain))
	}
	return w.Flush()
}

func printScale(out io.Writer, p plan, results []scale) error {
	fmt.Fprintf(out, "Two replicas and simulated nodes with %d volumes each:\n\n", scaleVolumes)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes", "resident memory, leader", "stand-by", "idle cores, leader", "stand-by", "all known and published after", "change → published, p50", "p99",
		"leader killed → another leads", "stopped → another leads", "started anew → ready")
	for _, r := range results {
		row(w, r.nodes, fmt.Sprintf("%.0f MiB", r.memory[0]/(1<<20)), fmt.Sprintf("%.0f MiB", r.memory[1]/(1<<20)),
			fmt.Sprintf("%.3f", r.cores[0]), fmt.Sprintf("%.3f", r.cores[1]), short(r.connecting),
			r.published50(), r.published99(), short(r.killed), short(r.stopped), short(r.started))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe same in proportion to %d nodes, and %d Pods with a volume at once:\n\n", p.scale[0], p.burst)
	header(w, "nodes", "memory per node, ratio", "all known, per node, ratio", "change → published, p50, ratio", "Pods per second", "ratio", "Pod created → placed, p50", "p99", "selected → bound, p50", "p99",
		"API writes per volume", "failures")
	for _, r := range results {
		first := results[0]
		row(w, r.nodes, ratio(r.memory[0]/float64(r.nodes), first.memory[0]/float64(first.nodes)),
			ratio(r.connecting.Seconds()/float64(r.nodes), first.connecting.Seconds()/float64(first.nodes)),
			ratio(quantile(r.published, 50).Seconds(), quantile(first.published, 50).Seconds()),
			fmt.Sprintf("%.1f", r.burst.perSecond()), ratio(r.burst.perSecond(), first.burst.perSecond()),
			short(quantile(r.burst.placed, 50)), short(quantile(r.burst.placed, 99)), short(quantile(r.burst.bound, 50)), short(quantile(r.burst.bound, 99)), r.burst.writes, r.burst.failures)
	}
	return w.Flush()
}

// ratio is how many times as much as before something is.
func ratio(now, before float64) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", now/before)
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

// middleWrites are the writes of the round with the median of all of them.
func middleWrites(rounds []burst) writes {
	all := slices.SortedFunc(slices.Values(rounds), func(a, b burst) int { return cmp.Compare(a.writes.all(), b.writes.all()) })
	return all[len(all)/2].writes
}

// quantile returns the percent-th percentile of sorted durations, or zero of none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func short(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }
