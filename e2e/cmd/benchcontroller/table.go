package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

func printBursts(out io.Writer, p plan, results map[time.Duration][]burst) error {
	fmt.Fprintf(out, "Bursts of %d Pods with an ephemeral volume on %d nodes, medians of %d:\n\n", p.burst, p.nodes, p.rounds)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(w, "create takes\tPods per second\tPod created → placed, p50\tp99\tselected → bound, p50\tp99\tAPI writes per volume\tfailures\tPV controller's alarms\tall deleted after")
	fmt.Fprintln(w, "---\t---\t---\t---\t---\t---\t---\t---\t---\t---")
	for _, createTime := range createTimes {
		rounds := results[createTime]
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%s\t%s\t%s\t%.1f\t%d\t%d\t%s\n", createTime,
			middle(rounds, func(b burst) float64 { return float64(b.pods) / b.all.Seconds() }),
			short(middle(rounds, func(b burst) time.Duration { return quantile(b.placed, 50) })),
			short(middle(rounds, func(b burst) time.Duration { return quantile(b.placed, 99) })),
			short(middle(rounds, func(b burst) time.Duration { return quantile(b.bound, 50) })),
			short(middle(rounds, func(b burst) time.Duration { return quantile(b.bound, 99) })),
			middle(rounds, func(b burst) float64 { return b.writes }),
			middle(rounds, func(b burst) int { return b.failures }),
			middle(rounds, func(b burst) int { return b.alarms }),
			short(middle(rounds, func(b burst) time.Duration { return b.deleteAll })))
	}
	return w.Flush()
}

func printFilling(out io.Writer, p plan, b *burst) error {
	_, err := fmt.Fprintf(out, "\nFilling %d nodes to the last byte with %d Pods at %.0f per second: %s, %d provisioning failures, %d alarms of the PV controller.\n",
		p.fillNodes, b.pods, p.fillRate, short(b.all), b.failures, b.alarms)
	return err
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
