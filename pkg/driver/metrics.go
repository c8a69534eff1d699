package driver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/csimetrics"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// Metrics are the node plugin's metrics, in a registry of their own.
type Metrics struct {
	Registry *prometheus.Registry

	operations *csimetrics.Operations
	checks     *prometheus.CounterVec
	registered prometheus.Gauge
	leaks      *prometheus.CounterVec
	conditions *prometheus.GaugeVec
	inlines    *prometheus.CounterVec

	mu      sync.Mutex
	reasons map[string]bool
}

// NewMetrics returns registered metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		reasons:  map[string]bool{},
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_filesystem_checks_total", Help: "File systems checked before they were mounted, by type and result: ok, failed.",
		}, []string{"type", "result"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "carve_node_volume_conditions", Help: "Volumes on the node that are not healthy, by condition, looked at every 30 seconds.",
		}, []string{"reason"}),
		leaks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_leaked_mounts_total",
			Help: "Mounts, and open encrypted volumes, that a previous run left: counted each time that they are found, at start and every five minutes, by kind (published, staged, mapping) and result (removed, kept).",
		}, []string{"kind", "result"}),
		inlines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carve_node_inline_volumes_total",
			Help: "Inline volumes, by event: made, refused (by lvmd), too-large (for --inline-max-size), removed (with their Pods), reclaimed (after their Pods were gone).",
		}, []string{"event"}),
		registered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "carve_node_registered", Help: "1 while the kubelet has the plugin registered.",
		}),
	}
	stuck := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carve_node_stuck", Help: "Programs that were killed, and reads and writes that were given up, and still wait in the kernel for a device that does not answer.",
	}, func() float64 { return float64(command.Stuck() + filesystem.Stuck()) })
	m.Registry.MustRegister(stuck, m.checks, m.registered, m.leaks, m.conditions, m.inlines)
	m.operations = csimetrics.NewPlugin(m.Registry)
	return m
}

func (m *Metrics) called(method string, err error, took time.Duration) {
	m.operations.Observe(method, err, took)
}

func (m *Metrics) checked(t filesystem.Type, err error) {
	m.checks.WithLabelValues(string(t), resultOf(err)).Inc()
}

func resultOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

func (m *Metrics) inline(event string) { m.inlines.WithLabelValues(event).Inc() }

func (m *Metrics) swept(kind, result string) { m.leaks.WithLabelValues(kind, result).Inc() }
