package provision

import "github.com/prometheus/client_golang/prometheus"

// Values of the label "result" of carve_controller_claims_total.
const (
	resultProvisioned = "provisioned" // a PersistentVolume was made
	resultRescheduled = "released"    // the scheduler is asked for another node
	resultRejected    = "rejected"    // the claim or its class is wrong
	resultFailed      = "failed"      // an attempt failed and will be repeated
)

// Metrics counts and times the provisioning of claims.
type Metrics struct {
	claims       *prometheus.CounterVec
	boundSeconds prometheus.Histogram
}

// NewMetrics registers the metrics of claims.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const ns, sub = "carve", "controller"
	buckets := []float64{.05, .1, .2, .4, .6, .8, 1, 1.5, 2, 3, 5, 10, 20, 60}
	m := &Metrics{
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "claims_total",
			Help: "Attempts to provision a claim, by result: provisioned, released (rescheduled), rejected (the claim or its class is wrong), failed (tried again)."}, []string{"result"}),
		boundSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "bound_seconds",
			Help: "Time from a claim's selected node to the bound claim.", Buckets: buckets}),
	}
	registerer.MustRegister(m.claims, m.boundSeconds)
	return m
}
