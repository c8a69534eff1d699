package audit

import "github.com/prometheus/client_golang/prometheus"

// Metrics compare the volumes on nodes with the API.
type Metrics struct {
	Audited *prometheus.GaugeVec
	Missing *prometheus.GaugeVec
	Orphans *prometheus.CounterVec
	// Unlabelled counts nodes whose topology label is missing or wrong.
	Unlabelled prometheus.Gauge
}

// NewMetrics registers the metrics of audits.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const ns, sub = "carve", "controller"
	m := &Metrics{
		Audited: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "audited_volumes",
			Help: "Volumes on connected nodes, by standing: known, young (below --orphan-grace), foreign (of another cluster, or made by hand), inline, orphan."}, []string{"standing"}),
		Missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "missing_volumes",
			Help: "PersistentVolumes whose connected node does not have the volume, by cause: removed, no_group (the volume group is missing), replaced (other disks), moved (it is on another node), unknown."}, []string{"cause"}),
		Orphans: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "orphans_total",
			Help: "Attempts to remove orphans (--remove-orphans), by result: removed, in_use (open on the node), known (the API server names it after all), unconfirmed (the API server could not be asked), failed (the node could not)."}, []string{"result"}),
		Unlabelled: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "nodes_without_label",
			Help: "Nodes whose label topology.carve.csi.local/node is missing while they are connected, or has another node's name. No Pod with a volume of theirs is scheduled there."}),
	}
	registerer.MustRegister(m.Audited, m.Missing, m.Orphans, m.Unlabelled)
	return m
}

// reset drops the results of the last pass: this replica no longer leads.
func (m *Metrics) reset() {
	m.Audited.Reset()
	m.Missing.Reset()
	m.Unlabelled.Set(0)
}
