package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// slowest is how many tests are listed with the time that they took.
const slowest = 20

// printTable prints the slowest tests, what the failed ones wrote to their logs, what
// became of the stages, and last of all a line that counts the tests. It returns errFailed
// where a stage failed.
func printTable(out io.Writer, stages []*stage, took time.Duration, idle float64) error {
	var err error
	var sum counter
	var times []timed
	flaky := 0
	for _, s := range stages {
		times = append(times, s.tests.times...)
	}
	slices.SortFunc(times, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintln(out, "\nThe tests that took longest:")
	for _, test := range times[:min(slowest, len(times))] {
		fmt.Fprintf(out, "%6s  %s\n", minutes(test.took), test.name)
	}
	for _, s := range stages {
		for _, failure := range s.failures.found {
			word := "FAILED"
			if len(s.flaky) > 0 {
				word = "FLAKY, passed alone:"
			}
			fmt.Fprintf(out, "\n=== %s in %s\n%s\n", word, s.target, failure)
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nstage\tresult\ttime\tprocessor\ttests\tfailed or flaky")
	for _, s := range stages {
		word := "passed"
		switch {
		case s.err != nil:
			word, err = "FAILED", errFailed
		case len(s.flaky) > 0:
			word = "flaky"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", s.target, word, minutes(s.took), minutes(s.processor), s.tests.passed+s.tests.failed, strings.Join(append(s.flaky, s.tests.broken...), " "))
		sum.passed += s.tests.passed
		sum.failed += s.tests.failed
		sum.skipped += s.tests.skipped
		flaky += len(s.flaky)
	}
	fmt.Fprintf(table, "all\t\t%s\t\t%d\t\n", minutes(took), sum.passed+sum.failed)
	if flushed := table.Flush(); flushed != nil {
		return flushed
	}
	fmt.Fprintf(out, "The processors were idle for %.0f %% of the time.\n", 100*idle)
	fmt.Fprintf(out, "%d of the tests that passed failed first.\n", flaky)
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return err
}

// minutes prints a duration as minutes and seconds.
func minutes(d time.Duration) string {
	seconds := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

// processors are the times of all processors since the machine started, see proc_stat(5).
type processors struct{ idle, all int64 }

func readIdle() (processors, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return processors{}, err
	}
	return parseIdle(string(content))
}

// parseIdle reads the first line of /proc/stat: "cpu USER NICE SYSTEM IDLE IOWAIT …".
func parseIdle(text string) (p processors, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return p, fmt.Errorf("read the processors' times: got %q, want the line of all processors", line)
	}
	for i, field := range fields[1:] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return p, fmt.Errorf("read the processors' times: %w", err)
		}
		if p.all += ticks; i == 3 || i == 4 { // idle, and idle while waiting for a disk
			p.idle += ticks
		}
	}
	return p, nil
}

// since returns the share of the time since p in which the processors were idle.
func (p processors) since() (float64, error) {
	now, err := readIdle()
	if err != nil || now.all <= p.all {
		return 0, err
	}
	return float64(now.idle-p.idle) / float64(now.all-p.all), nil
}
