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

func printChurn(out io.Writer, results []*churn) error {
	fmt.Fprintf(out, "Pods with an ephemeral volume that come and go:\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes", "Pods per second", "Kubernetes' own clients", "for", "each deleted after", "bound", "selected → bound, p50", "p99", "p50 of the first half", "p50 of the second half", "PV controller's warnings", "all gone after")
	for _, r := range results {
		row(w, r.nodes, r.pace, r.rate(), r.time, r.live, fmt.Sprintf("%d of %d", len(r.bound), r.pods),
			short(quantile(r.bound, 50)), short(quantile(r.bound, 99)), short(quantile(r.halves[0], 50)), short(quantile(r.halves[1], 50)), r.warnings, short(r.drain))
	}
	return w.Flush()
}

func printScale(out io.Writer, p plan, results []scale) error {
	fmt.Fprintf(out, "\nTwo replicas and simulated nodes: %d volumes each, %d of them with a PersistentVolume, in %d classes; %d %% of the nodes are full; a volume group takes %v per volume.\n\n",
		p.scale.volumes, min(p.scale.held, p.scale.volumes), p.scale.classes, p.scale.full, p.scale.createTime)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes", "resident memory, leader", "stand-by", "idle cores, leader", "stand-by", "all known and published after", "change → published, p50", "p99")
	for _, r := range results {
		row(w, r.nodes, fmt.Sprintf("%.0f MiB", r.memory[0]/(1<<20)), fmt.Sprintf("%.0f MiB", r.memory[1]/(1<<20)),
			fmt.Sprintf("%.3f", r.cores[0]), fmt.Sprintf("%.3f", r.cores[1]), short(r.connecting), millis(quantile(r.published, 50)), millis(quantile(r.published, 99)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nWhat ends, and until when the rest goes on:\n\n")
	header(w, "nodes", "leader killed → another leads", "all nodes have heard", "stopped → another leads", "all nodes have heard", "started anew → ready", "both killed → all nodes known", "writes of capacity", "all agents restarted → all known", "writes of capacity",
		"node hung → its capacity is zero", "tainted out-of-service → a Pod sent there is elsewhere")
	for _, r := range results {
		row(w, r.nodes, measured(r.killed.leads), measured(r.killed.known), measured(r.stopped.leads), measured(r.stopped.known), measured(r.started), measured(r.both.took), r.both.writes, measured(r.agents.took), r.agents.writes,
			measured(r.hung.withdrawn), measured(r.hung.rescheduled))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nPods with a volume at once:\n\n")
	header(w, "nodes", "Pods", "Pods per second", "Pod created → placed, p50", "p99", "selected → bound, p50", "p99", "scheduler's processor time per Pod", "failures", "Carve's writes per volume", "all clients' writes per volume")
	var cloned []scale
	var churned []*churn
	for _, r := range results {
		for _, b := range r.bursts {
			row(w, r.nodes, b.pods, fmt.Sprintf("%.1f", b.perSecond()), short(quantile(b.placed, 50)), short(quantile(b.placed, 99)), short(quantile(b.bound, 50)), short(quantile(b.bound, 99)),
				(b.scheduler / time.Duration(b.pods)).Round(100*time.Microsecond), b.failures, b.writes, b.allWrites)
		}
		if r.clones != nil {
			cloned = append(cloned, r)
		}
		if r.churn != nil {
			churned = append(churned, r.churn)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := printClones(out, cloned); err != nil || len(churned) == 0 {
		return err
	}
	fmt.Fprintln(out)
	return printChurn(out, churned)
}

func printClones(out io.Writer, results []scale) error {
	if len(results) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\n%d clones of one claim at once:\n\n", cloneCount)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	header(w, "nodes", "bound after, p50", "p99", "all", "Carve's writes per clone")
	for _, r := range results {
		row(w, r.nodes, short(quantile(r.clones.bound, 50)), short(quantile(r.clones.bound, 99)), short(r.clones.all), r.clones.writes)
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

// measured leaves out what was not measured.
func measured(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return short(d)
}

func millis(d time.Duration) string { return d.Round(time.Millisecond).String() }

func short(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }
