package controller

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "result" of carve_controller_claims_total.
const (
	resultProvisioned = "provisioned" // a PersistentVolume was made
	resultReleased    = "released"    // handed back to the scheduler
	resultRejected    = "rejected"    // the claim or its class is wrong
	resultFailed      = "failed"      // an attempt failed and will be repeated
)

// metrics are the controller's, prefixed carve_controller_.
type metrics struct {
	claims         *prometheus.CounterVec
	createSeconds  prometheus.Histogram
	boundSeconds   prometheus.Histogram
	deletes        *prometheus.CounterVec
	capacityWrites *prometheus.CounterVec
	audited        *prometheus.GaugeVec
	missing        *prometheus.GaugeVec
	orphans        *prometheus.CounterVec
	tainted        prometheus.Gauge
	untainted      prometheus.Counter
	leading        prometheus.Gauge
	// extenderSeconds is by verb and HTTP code.
	extenderSeconds *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer, connected, refused, reservations func() float64, heldBack func(cause string) float64) *metrics {
	const ns, sub = "carve", "controller"
	buckets := []float64{.05, .1, .2, .4, .6, .8, 1, 1.5, 2, 3, 5, 10, 20, 60}
	m := &metrics{
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "claims_total",
			Help: "Attempts to provision a claim, by result."}, []string{"result"}),
		createSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "create_seconds",
			Help: "Time that nodes took to create volumes, successes only.", Buckets: buckets}),
		boundSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "bound_seconds",
			Help: "Time from seeing a claim's selected node to seeing the claim bound.", Buckets: buckets}),
		deletes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "deletes_total",
			Help: "Attempts to delete a released volume, by result (deleted, failed, node_gone)."}, []string{"result"}),
		capacityWrites: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "capacity_writes_total",
			Help: "Writes of CSIStorageCapacity objects, by operation (create, update, delete, failed)."}, []string{"operation"}),
		audited: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "audited_volumes",
			Help: "Volumes on connected nodes, by standing (known, young, foreign, orphan, inline)."}, []string{"standing"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "missing_volumes",
			Help: "PersistentVolumes whose connected node does not have the volume, by cause (removed, replaced, no_group, moved, unknown)."}, []string{"cause"}),
		orphans: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "orphans_total",
			Help: "Attempts to remove orphans, by result (removed, in_use, known, unconfirmed, failed)."}, []string{"result"}),
		tainted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "tainted_nodes",
			Help: "Nodes that carry the start-up taint (--remove-startup-taint)."}),
		untainted: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "startup_taints_removed_total",
			Help: "Nodes that were relieved of the start-up taint."}),
		extenderSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "extender_seconds",
			Help: "Time that answers to the scheduler took, by verb and HTTP code.", Buckets: prometheus.ExponentialBuckets(.0005, 4, 8)}, []string{"verb", "code"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "leading",
			Help: "1 while this replica leads."}),
	}
	registerer.MustRegister(m.claims, m.createSeconds, m.boundSeconds, m.deletes, m.capacityWrites, m.audited, m.missing, m.orphans, m.tainted, m.untainted, m.extenderSeconds, m.leading,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connected_nodes",
			Help: "Nodes with an uplink to this replica."}, connected),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "refused_nodes",
			Help: "Nodes whose report this replica refuses, because it has more than a node can hold."}, refused),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "reservations",
			Help: "Claims that chose a node and whose volume the node does not report yet."}, reservations))
	for _, cause := range []string{causeAway, causeFailing} {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "held_back_nodes",
			Help: "Nodes whose capacity is held back, all or some of it, by cause (away, failing).", ConstLabels: prometheus.Labels{"cause": cause}},
			func() float64 { return heldBack(cause) }))
	}
	return m
}
