// Package reference reads which metrics Carve's programs have from the page that is
// generated from their registries, docs/reference/metrics.md. A test beside that page fails
// when it is not what the registries say.
package reference

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Page is the page, below the source tree's root.
const Page = "docs/reference/metrics.md"

// Kinds of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Metric is one metric of a program.
type Metric struct {
	// Name is without the suffixes of a histogram's series.
	Name, Kind string
	Labels     []string
	// Container is that of the program, by which it is scraped.
	Container string
}

var (
	heading = regexp.MustCompile(`^## (lvmd|The node plugin|The controller)`)
	row     = regexp.MustCompile("^\\| `(\\w+)` \\| (counter|gauge|histogram) \\| ([\\w, ]*) \\|")
)

var containers = map[string]string{"lvmd": "lvmd", "The node plugin": "node", "The controller": "controller"}

// Read returns the metrics by name; one that several programs have is there once for each.
func Read(page string) (map[string][]Metric, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	found, container := map[string][]Metric{}, ""
	for line := range strings.Lines(string(text)) {
		if m := heading.FindStringSubmatch(line); m != nil {
			container = containers[m[1]]
		}
		if m := row.FindStringSubmatch(line); m != nil {
			metric := Metric{Name: m[1], Kind: m[2], Container: container}
			if labels := strings.TrimSpace(m[3]); labels != "" {
				metric.Labels = strings.Split(labels, ", ")
			}
			found[metric.Name] = append(found[metric.Name], metric)
		}
	}
	return found, nil
}

// OfSeries returns the metrics that have a series of that name: a histogram's ends in
// _bucket, _count or _sum.
func OfSeries(metrics map[string][]Metric, series string) []Metric {
	if m := metrics[series]; m != nil {
		return m
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if name, is := strings.CutSuffix(series, suffix); is && len(metrics[name]) > 0 && metrics[name][0].Kind == Histogram {
			return metrics[name]
		}
	}
	return nil
}
