package reclaim

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of deletions.
type Metrics struct {
	deletes *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{deletes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "carve", Subsystem: "controller", Name: "deletes_total",
		Help: "Attempts to delete a released volume, by result: deleted, failed, node_gone (abandoned)."}, []string{"result"})}
	registerer.MustRegister(m.deletes)
	return m
}
