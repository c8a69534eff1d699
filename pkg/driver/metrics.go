package driver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/filesystem"
)

// Metrics are the node plugin's, in a registry of their own.
type Metrics struct {
	// Registry has all of them.
	Registry *prometheus.Registry

	calls      *prometheus.HistogramVec
	checks     *prometheus.CounterVec
	remakes    *prometheus.CounterVec
	registered prometheus.Gauge
	leaks      *prometheus.CounterVec
	conditions *prometheus.GaugeVec
	inlines    *prometheus.CounterVec

	mu sync.Mutex
	// reasons that conditions has had so far.
	reasons map[string]bool
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		reasons:  map[string]bool{},
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carve_node_csi_seconds", Help: "Duration of CSI calls by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"method", "code"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_filesystem_checks_total", Help: "File systems checked before mounting, by type and result.",
		}, []string{"type", "result"}),
		remakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_filesystem_remakes_total",
			Help: "Scratch file systems made anew, empty, because they were not taken off cleanly, by type and result.",
		}, []string{"type", "result"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "carve_node_volume_conditions", Help: "Volumes on the node that are not healthy, by reason.",
		}, []string{"reason"}),
		leaks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_leaked_mounts_total",
			Help: "Mounts that a previous run left, found at start and every few minutes, by kind (published, staged, mapping) and result (removed, kept).",
		}, []string{"kind", "result"}),
		inlines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_inline_volumes_total",
			Help: "Inline volumes by what happened: made, refused (by lvmd), too-large (for the node's limit), removed (with their Pods), reclaimed (when their Pods were gone).",
		}, []string{"event"}),
		registered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "carve_node_registered", Help: "1 while the kubelet has the plugin registered.",
		}),
	}
	m.Registry.MustRegister(m.calls, m.checks, m.remakes, m.registered, m.leaks, m.conditions, m.inlines)
	return m
}

func (m *Metrics) called(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Observe(took.Seconds())
}

func (m *Metrics) checked(t filesystem.Type, err error) {
	m.checks.WithLabelValues(string(t), resultOf(err)).Inc()
}

func (m *Metrics) remade(t filesystem.Type, err error) {
	m.remakes.WithLabelValues(string(t), resultOf(err)).Inc()
}

func resultOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// Events of inline volumes.
const (
	inlineMade      = "made"
	inlineRefused   = "refused"
	inlineTooLarge  = "too-large"
	inlineRemoved   = "removed"
	inlineReclaimed = "reclaimed"
)

func (m *Metrics) inline(event string) { m.inlines.WithLabelValues(event).Inc() }

func (m *Metrics) swept(kind, result string) { m.leaks.WithLabelValues(kind, result).Inc() }
