// Package csimetrics measures CSI calls under the names and labels that sidecars and other
// drivers use (csi-lib-utils), so that the dashboards and rules that people have for those
// show Carve, too.
//
// It does not use that library: of what depends on it, the node plugin would need nothing,
// and its buckets begin at a tenth of a second, in which Carve does most calls. The buckets
// here are those and finer ones below. A test compares both.
package csimetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/names"
)

// Operations are the durations of calls by method, such as /csi.v1.Node/NodeStageVolume,
// and gRPC code. All methods may be called concurrently.
type Operations struct{ seconds *prometheus.HistogramVec }

// buckets are the upper bounds, in seconds.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// NewPlugin registers csi_plugin_operations_seconds: the calls that the program answers.
func NewPlugin(registerer prometheus.Registerer) *Operations {
	return newOperations(registerer, "csi_plugin", "Duration of CSI calls that were answered, by method and gRPC code.")
}

// NewSidecar registers csi_sidecar_operations_seconds: the calls that the program makes.
func NewSidecar(registerer prometheus.Registerer) *Operations {
	return newOperations(registerer, "csi_sidecar",
		"Duration of calls to nodes that a sidecar would make by CSI (CreateVolume, DeleteVolume, ControllerExpandVolume, CreateSnapshot, DeleteSnapshot), by method and gRPC code.")
}

func newOperations(registerer prometheus.Registerer, subsystem, help string) *Operations {
	o := &Operations{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: subsystem, Name: "operations_seconds", Help: help, Buckets: buckets,
	}, []string{"driver_name", "method_name", "grpc_status_code"})}
	registerer.MustRegister(o.seconds)
	return o
}

// Observe records a call. Method is the full name of the RPC; err is what it ended with.
func (o *Operations) Observe(method string, err error, took time.Duration) {
	o.seconds.WithLabelValues(names.Driver, method, status.Code(err).String()).Observe(took.Seconds())
}
