package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// apiRequests counts what this program asks of the API server. client-go has
// one place for such a counter in a process.
type apiRequests struct{ requests *prometheus.CounterVec }

func countAPIRequests(registerer prometheus.Registerer) {
	c := apiRequests{prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "carve", Subsystem: "controller", Name: "api_requests_total",
		Help: "Requests to the API server, by method and response code.",
	}, []string{"method", "code"})}
	registerer.MustRegister(c.requests)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: c})
}

// Increment implements client-go's ResultMetric.
func (c apiRequests) Increment(_ context.Context, code, method, _ string) {
	c.requests.WithLabelValues(method, code).Inc()
}
