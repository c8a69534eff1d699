package csimetrics_test

import (
	"slices"
	"testing"
	"time"

	librarymetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/csimetrics"
	"github.com/carve-csi/carve/pkg/must"
)

// TestCallsAreMeasuredAsTheCommunitysLibraryDoes records the same calls with both.
func TestCallsAreMeasuredAsTheCommunitysLibraryDoes(t *testing.T) {
	const method = "/csi.v1.Node/NodeStageVolume"
	full := status.Error(codes.ResourceExhausted, "full")
	for name, test := range map[string]struct {
		ours   func(prometheus.Registerer) *csimetrics.Operations
		theirs func(string) librarymetrics.CSIMetricsManager
	}{
		"a driver":  {csimetrics.NewPlugin, librarymetrics.NewCSIMetricsManagerForPlugin},
		"a sidecar": {csimetrics.NewSidecar, librarymetrics.NewCSIMetricsManagerForSidecar},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			ours, theirs := test.ours(registry), test.theirs(names.Driver)
			for _, err := range []error{nil, full} {
				ours.Observe(method, err, 700*time.Millisecond)
				theirs.RecordMetrics(method, err, 700*time.Millisecond)
			}
			got := operations(t, registry)
			want := operations(t, theirs.GetRegistry())
			if got.GetName() != want.GetName() || got.GetType() != want.GetType() || len(got.GetMetric()) != len(want.GetMetric()) {
				t.Fatalf("want %s (%s) with %d series, got %s (%s) with %d", want.GetName(), want.GetType(), len(want.GetMetric()),
					got.GetName(), got.GetType(), len(got.GetMetric()))
			}
			for i, series := range want.GetMetric() {
				if has := labels(got.GetMetric()[i]); !slices.Equal(has, labels(series)) {
					t.Errorf("labels: want %v, got %v", labels(series), has)
				}
				mine := got.GetMetric()[i].GetHistogram().GetBucket()
				for _, bucket := range series.GetHistogram().GetBucket() {
					if !slices.ContainsFunc(mine, func(b *dto.Bucket) bool {
						return b.GetUpperBound() == bucket.GetUpperBound() && b.GetCumulativeCount() == bucket.GetCumulativeCount()
					}) {
						t.Errorf("%v: no bucket up to %v s with %d calls", labels(series), bucket.GetUpperBound(), bucket.GetCumulativeCount())
					}
				}
			}
		})
	}
}

// operations returns the metric of the operations.
func operations(t *testing.T, from prometheus.Gatherer) *dto.MetricFamily {
	t.Helper()
	families := must.Get(from.Gather())(t)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetType() == dto.MetricType_HISTOGRAM })
	if i < 0 {
		t.Fatal("there is no histogram")
	}
	return families[i]
}

func labels(m *dto.Metric) []string {
	var all []string
	for _, l := range m.GetLabel() {
		all = append(all, l.GetName()+"="+l.GetValue())
	}
	return all
}
