package capacity

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of what is published, and of start-up taints.
type Metrics struct {
	writes  *prometheus.CounterVec
	tainted prometheus.Gauge
	// taintedSince is in seconds since 1970.
	taintedSince prometheus.Gauge
	untainted    prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const ns, sub = "carve", "controller"
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "capacity_writes_total",
			Help: "Writes of CSIStorageCapacity objects, by operation: create, update, delete, failed."}, []string{"operation"}),
		tainted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tainted_nodes",
			Help: "Nodes that carry the start-up taint (--remove-startup-taint)."}),
		taintedSince: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tainted_since_timestamp_seconds",
			Help: "When the node that has waited longest for its start-up taint to go was first seen by this leader, in seconds since 1970; 0 if none waits."}),
		untainted: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "startup_taints_removed_total",
			Help: "Nodes that lost the start-up taint."}),
	}
	registerer.MustRegister(m.writes, m.tainted, m.taintedSince, m.untainted)
	return m
}
