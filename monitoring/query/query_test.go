package query_test

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/monitoring/query"
	"github.com/carve-csi/carve/monitoring/reference"
)

func TestWrongQuestionsAreFound(t *testing.T) {
	metrics := map[string][]reference.Metric{
		"queue":   {{Name: "queue", Kind: reference.Gauge, Labels: []string{"group"}}},
		"total":   {{Name: "total", Kind: reference.Counter, Labels: []string{"result"}}},
		"seconds": {{Name: "seconds", Kind: reference.Histogram, Labels: []string{"method"}}},
	}
	for question, want := range map[string]string{
		`sum by (group, node) (queue{group="a"})`:                         "",
		`histogram_quantile(0.9, sum by (le) (rate(seconds_bucket[5m])))`: "",
		`rate(seconds_count{method="x"}[5m])`:                             "",
		`label_replace(queue, "g", "$1", "group", "(.*)") * on (g) g`:     "there is no metric g",
		`queue{`:                   "parse error",
		`queues`:                   "there is no metric queues",
		`queue{class="a"}`:         "queue has no label class",
		`sum by (class) (queue)`:   "grouped by class",
		`queue * on (class) queue`: "matched by class",
		`rate(queue[5m])`:          "rate of queue, which is a gauge",
		`deriv(total[5m])`:         "deriv of total, which is a counter",
		`seconds`:                  "seconds is a histogram",
		`histogram_quantile(0.9, sum by (method) (rate(seconds_bucket[5m])))`: "quantiles by le",
		`sum by (method) (sum(seconds_count))`:                                "grouped by method",
	} {
		err := query.Check(metrics, question)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: want %q, got %v", question, want, err)
		}
	}
}
