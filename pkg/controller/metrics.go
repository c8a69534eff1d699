package controller

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/pin"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/reclaim"
	"github.com/carve-csi/carve/pkg/csimetrics"
	"github.com/carve-csi/carve/pkg/uplink"
)

type metrics struct {
	provision *provision.Metrics
	reclaim   *reclaim.Metrics
	audit     *audit.Metrics
	capacity  *capacity.Metrics
	pin       *pin.Metrics
	leading   prometheus.Gauge
	// uninformed counts nodes that have yet to hear that this replica leads.
	uninformed       prometheus.Gauge
	made             *csimetrics.Operations
	uplinkRejections *prometheus.CounterVec
}

// DescribeMetrics describes all of the controller's metrics, for the reference.
func DescribeMetrics(ch chan<- *prometheus.Desc) {
	zero := func() float64 { return 0 }
	registry := prometheus.NewRegistry()
	newMetrics(registry, zero, zero, zero, func(string) float64 { return 0 })
	requests := newAPIRequests()
	registry.MustRegister(requests.requests, requests.writes)
	registry.Describe(ch)
}

// csiMethods are calls to nodes for which a sidecar would use CSI.
var csiMethods = map[string]string{
	lvmdv1.LVMD_CreateVolume_FullMethodName:   csi.Controller_CreateVolume_FullMethodName,
	lvmdv1.LVMD_DeleteVolume_FullMethodName:   csi.Controller_DeleteVolume_FullMethodName,
	lvmdv1.LVMD_ExpandVolume_FullMethodName:   csi.Controller_ControllerExpandVolume_FullMethodName,
	lvmdv1.LVMD_CreateSnapshot_FullMethodName: csi.Controller_CreateSnapshot_FullMethodName,
	lvmdv1.LVMD_DeleteSnapshot_FullMethodName: csi.Controller_DeleteSnapshot_FullMethodName,
}

func (m *metrics) called(method string, err error, took time.Duration) {
	if method, ok := csiMethods[method]; ok {
		m.made.Observe(method, err, took)
	}
}

func newMetrics(registerer prometheus.Registerer, connected, refused, reservations func() float64, heldBack func(cause string) float64) *metrics {
	const ns, sub = "carve", "controller"
	m := &metrics{
		provision: provision.NewMetrics(registerer),
		reclaim:   reclaim.NewMetrics(registerer),
		audit:     audit.NewMetrics(registerer),
		capacity:  capacity.NewMetrics(registerer),
		pin:       pin.NewMetrics(registerer),
		made:      csimetrics.NewSidecar(registerer),
		uplinkRejections: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "uplink_rejections_total",
			Help: "Connections to the uplink that were rejected, by reason: address, network (a /64 of IPv6) and total (too many handshakes at once of one, or in all), " +
				"handshake (it failed), credentials (refused, or they could not be checked). The log has the addresses."}, []string{"reason"}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "leading",
			Help: "1 on the replica that leads, 0 on the others."}),
		uninformed: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "uninformed_nodes",
			Help: "Connected nodes that have yet to learn that this replica leads."}),
	}
	for _, reason := range uplink.RejectReasons {
		m.uplinkRejections.WithLabelValues(reason)
	}
	registerer.MustRegister(m.uplinkRejections, m.leading, m.uninformed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connected_nodes",
			Help: "Nodes with an uplink to this replica."}, connected),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "refused_nodes",
			Help: "Nodes whose report this replica refuses: more than 20,000 volumes, 256 device classes or 16 MiB, or an id or name that cannot be one. Nothing is provisioned there."}, refused),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "reservations",
			Help: "Claims with a selected node that does not report their volume yet."}, reservations))
	for _, cause := range []string{cluster.CauseAway, cluster.CauseFailing} {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "held_back_nodes",
			Help: "Nodes whose capacity is published as zero, all or some of it, by cause: away (the agent is not connected), failing (creating volumes fails). The number of the leader counts.", ConstLabels: prometheus.Labels{"cause": cause}},
			func() float64 { return heldBack(cause) }))
	}
	return m
}
