// Package query checks questions to Prometheus against the metrics that there are: that every
// metric and label exists, and that a function is given the kind of metric that it is for.
package query

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/carve-csi/carve/monitoring/reference"
)

// targetLabels are those that scraping adds, by docs/how-to/monitoring.md.
var targetLabels = []string{"job", "instance", "namespace", "pod", "container", "node"}

// Foreign are metrics of other programs that questions may ask for, with their labels.
var Foreign = []reference.Metric{
	{Name: "up", Kind: reference.Gauge},
	{Name: "ALERTS", Kind: reference.Gauge, Labels: []string{"alertname", "alertstate", "severity", "class", "group", "condition"}},
	{Name: "kubelet_volume_stats_used_bytes", Kind: reference.Gauge, Labels: []string{"persistentvolumeclaim"}},
	{Name: "kubelet_volume_stats_capacity_bytes", Kind: reference.Gauge, Labels: []string{"persistentvolumeclaim"}},
	{Name: "node_disk_read_bytes_total", Kind: reference.Counter, Labels: []string{"device"}},
	{Name: "node_disk_written_bytes_total", Kind: reference.Counter, Labels: []string{"device"}},
	{Name: "node_disk_reads_completed_total", Kind: reference.Counter, Labels: []string{"device"}},
	{Name: "node_disk_writes_completed_total", Kind: reference.Counter, Labels: []string{"device"}},
}

// Check returns what is wrong with a question, or nil. The metrics are Carve's, by name.
func Check(metrics map[string][]reference.Metric, question string) error {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(question)
	if err != nil {
		return fmt.Errorf("%s: %w", question, err)
	}
	c := checker{metrics: metrics}
	c.labelsOf(expr)
	if len(c.wrong) > 0 {
		return fmt.Errorf("%s: %w", question, errors.Join(c.wrong...))
	}
	return nil
}

type checker struct {
	metrics map[string][]reference.Metric
	wrong   []error
}

func (c *checker) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

// labelsOf returns the labels that the series below a node may have, and checks the node.
func (c *checker) labelsOf(node parser.Node) []string {
	var found []string
	for _, child := range parser.Children(node) {
		found = append(found, c.labelsOf(child)...)
	}
	known := func(what string, names []string) {
		for _, name := range names {
			if !slices.Contains(found, name) {
				c.fail("%s %s, which nothing below has", what, name)
			}
		}
	}
	switch n := node.(type) {
	case *parser.VectorSelector:
		return c.selector(n)
	case *parser.AggregateExpr:
		known("grouped by", n.Grouping)
		if n.Op == parser.SUM || n.Op == parser.MAX || n.Op == parser.MIN || n.Op == parser.COUNT || n.Op == parser.AVG {
			if !n.Without {
				return n.Grouping
			}
		}
	case *parser.BinaryExpr:
		if n.VectorMatching != nil {
			known("matched by", n.VectorMatching.MatchingLabels)
			known("joined with", n.VectorMatching.Include)
		}
	case *parser.Call:
		c.call(n)
		if n.Func.Name == "label_replace" {
			found = append(found, n.Args[1].(*parser.StringLiteral).Val)
		}
		if n.Func.Name == "histogram_quantile" {
			known("quantiles by", []string{"le"})
			found = slices.DeleteFunc(found, func(name string) bool { return name == "le" })
		}
	}
	return found
}

// selector checks that the series and the labels exist.
func (c *checker) selector(s *parser.VectorSelector) []string {
	found := c.of(s)
	if len(found) == 0 {
		c.fail("there is no metric %s", s.Name)
		return nil
	}
	names := slices.Clone(targetLabels)
	for _, m := range found {
		names = append(names, m.Labels...)
		if m.Kind == reference.Histogram {
			names = append(names, "le")
			if s.Name == m.Name {
				c.fail("%s is a histogram, which has no series of that name", s.Name)
			}
		}
	}
	for _, m := range s.LabelMatchers {
		if m.Name != model.MetricNameLabel && !slices.Contains(names, m.Name) {
			c.fail("%s has no label %s", s.Name, m.Name)
		}
	}
	return names
}

func (c *checker) of(s *parser.VectorSelector) []reference.Metric {
	if found := reference.OfSeries(c.metrics, s.Name); found != nil {
		return found
	}
	if i := slices.IndexFunc(Foreign, func(m reference.Metric) bool { return m.Name == s.Name }); i >= 0 {
		return Foreign[i : i+1]
	}
	return nil
}

// call checks that rates are of counters, and slopes of gauges.
func (c *checker) call(call *parser.Call) {
	var want bool
	switch call.Func.Name {
	case "rate", "irate", "increase":
		want = true
	case "deriv", "delta", "predict_linear":
	default:
		return
	}
	over, ok := call.Args[0].(*parser.MatrixSelector)
	if !ok {
		return
	}
	for _, m := range c.of(over.VectorSelector.(*parser.VectorSelector)) {
		if counts := m.Kind != reference.Gauge; counts != want {
			c.fail("%s of %s, which is a %s", call.Func.Name, m.Name, m.Kind)
		}
	}
}
