package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// table holds every round that counts.
type table struct {
	burst                                      int
	emptyOne, carveOne, emptyBurst, carveBurst []round
}

// print writes the medians over the rounds as Markdown.
func (t *table) print(out io.Writer) {
	fmt.Fprintf(out, "Medians of %d rounds; ratios are to emptyDir in the same run.\n\n", len(t.carveBurst))
	fmt.Fprintln(out, "| what | emptyDir | Carve | ratio |")
	fmt.Fprintln(out, "|---|---|---|---|")
	row := func(what string, empty, carve []round, pick func(round) time.Duration) {
		e, c := median(empty, pick), median(carve, pick)
		fmt.Fprintf(out, "| %s | %v | %v | %.2f |\n", what, shown(e), shown(c), float64(c)/float64(e))
	}
	row("create → Running, one Pod", t.emptyOne, t.carveOne, func(r round) time.Duration { return percentile(r.started, 100) })
	row(fmt.Sprintf("create → Running, burst of %d, p50", t.burst), t.emptyBurst, t.carveBurst, func(r round) time.Duration { return percentile(r.started, 50) })
	row(fmt.Sprintf("create → Running, burst of %d, last", t.burst), t.emptyBurst, t.carveBurst, func(r round) time.Duration { return percentile(r.started, 100) })
	only := func(what string, rounds []round, pick func(round) time.Duration) {
		fmt.Fprintf(out, "| %s | | %v | |\n", what, shown(median(rounds, pick)))
	}
	only("selected-node → bound, one claim", t.carveOne, func(r round) time.Duration { return percentile(r.bound, 100) })
	only(fmt.Sprintf("selected-node → bound, burst of %d, p50", t.burst), t.carveBurst, func(r round) time.Duration { return percentile(r.bound, 50) })
	only(fmt.Sprintf("selected-node → bound, burst of %d, last", t.burst), t.carveBurst, func(r round) time.Duration { return percentile(r.bound, 100) })
	all := median(t.carveBurst, func(r round) time.Duration { return r.all })
	fmt.Fprintf(out, "| volumes per second in the burst, first create to last bound | | %.1f | |\n", float64(t.burst)/all.Seconds())
}

func shown(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// median returns the median over rounds of what pick takes from each.
func median(rounds []round, pick func(round) time.Duration) time.Duration {
	values := make([]time.Duration, 0, len(rounds))
	for _, r := range rounds {
		values = append(values, pick(r))
	}
	slices.Sort(values)
	return percentile(values, 50)
}

// percentile returns the p-th percentile (nearest rank) of sorted values, zero
// when there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (p*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}
