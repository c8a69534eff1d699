package controller

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// apiRequests counts this process' requests to the API server. client-go keeps such counters
// globally.
type apiRequests struct {
	requests *prometheus.CounterVec // by method and code
	writes   *prometheus.CounterVec // by resource
}

// CountAPIRequests counts the requests of this process to the API server. Call it at most
// once.
func CountAPIRequests(registerer prometheus.Registerer) {
	c := newAPIRequests()
	registerer.MustRegister(c.requests, c.writes)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: c, RequestLatency: c})
}

func newAPIRequests() apiRequests {
	return apiRequests{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "carve", Subsystem: "controller", Name: "api_requests_total",
			Help: "Requests to the API server, by method and response code.",
		}, []string{"method", "code"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "carve", Subsystem: "controller", Name: "api_writes_total",
			Help: "Requests to the API server that change something, by resource and subresource.",
		}, []string{"resource"}),
	}
}

// Increment implements client-go's ResultMetric.
func (c apiRequests) Increment(_ context.Context, code, method, _ string) {
	c.requests.WithLabelValues(method, code).Inc()
}

// Observe implements client-go's LatencyMetric.
func (c apiRequests) Observe(_ context.Context, verb string, template url.URL, _ time.Duration) {
	if verb != http.MethodGet {
		c.writes.WithLabelValues(resourceOf(template.Path)).Inc()
	}
}

// resourceOf expects client-go's placeholders for names in the path.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "{namespace}" || p == "{name}" })
	before := 2 // api, version
	if parts[0] == "apis" {
		before = 3 // apis, group, version
	}
	parts = parts[min(before, len(parts)):]
	if len(parts) > 1 && parts[0] == "namespaces" {
		parts = parts[1:]
	}
	return strings.Join(parts, "/")
}
