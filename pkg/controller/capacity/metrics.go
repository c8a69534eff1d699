package capacity

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the Publisher and the Untainter.
type Metrics struct {
	writes *prometheus.CounterVec
	// taintedSince is in seconds since 1970.
	taintedSince prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const ns, sub = "carve", "controller"
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "capacity_writes_total",
			Help: "Writes of CSIStorageCapacity objects, by operation: create, update, delete, failed."}, []string{"operation"}),
		taintedSince: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tainted_since_timestamp_seconds",
			Help: "When the node that has waited longest for its start-up taint to go was first seen by this leader, in seconds since 1970; 0 if none waits."}),
	}
	registerer.MustRegister(m.writes, m.taintedSince)
	return m
}
