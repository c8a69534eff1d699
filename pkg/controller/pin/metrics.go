package pin

import "github.com/prometheus/client_golang/prometheus"

// Values of the label "reason" of carve_controller_volumes_pinned_total.
const (
	reasonUnplaced  = "unplaced"
	reasonMisplaced = "misplaced"
	reasonShared    = "shared"
	reasonStays     = "class"
	reasonFull      = "full"
)

// Metrics are the metrics of movable volumes.
type Metrics struct {
	pinned *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		pinned: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "carve", Subsystem: "controller", Name: "volumes_pinned_total",
			Help: "Movable volumes (StorageClass parameter pod-volumes) that got a nodeAffinity, by reason: unplaced (the Pod had no node 2 s after its claim was bound), misplaced (a Pod was bound to another node), " +
				"shared (a second Pod names the claim), class (its class or reclaim policy is not one of movable volumes), " +
				"full (the Cluster Autoscaler marked the node as one to remove, and no other node had free space for the Pod's volumes)."}, []string{"reason"}),
	}
	for _, reason := range []string{reasonUnplaced, reasonMisplaced, reasonShared, reasonStays, reasonFull} {
		m.pinned.WithLabelValues(reason)
	}
	registerer.MustRegister(m.pinned)
	return m
}
