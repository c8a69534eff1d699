package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/controlplane"
)

// metrics is a page of metrics, by name.
type metrics map[string]*dto.MetricFamily

func parseMetrics(page io.Reader) (metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return parsed, nil
}

// sums adds up the samples of a counter or a gauge, each under the key that by makes of its labels,
// and leaves out those whose key is empty.
func (m metrics) sums(name string, by func(labels map[string]string) string) map[string]float64 {
	sums := map[string]float64{}
	for _, sample := range m[name].GetMetric() {
		labels := map[string]string{}
		for _, label := range sample.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if key := by(labels); key != "" {
			sums[key] += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
		}
	}
	return sums
}

// value is that of a metric without labels.
func (m metrics) value(name string) (float64, error) {
	if m[name] == nil {
		return 0, fmt.Errorf("there is no metric %s", name)
	}
	return m.sums(name, func(map[string]string) string { return name })[name], nil
}

// metrics reads the metrics of a replica.
func (c *cluster) metrics(ctx context.Context, replica int) (metrics, error) {
	page, err := c.request(ctx, http.MethodGet, "https://"+opsAddress(replica)+"/metrics")
	if err != nil {
		return nil, err
	}
	defer page.Close()
	return parseMetrics(page)
}

// metric reads a metric without labels of a replica.
func (c *cluster) metric(ctx context.Context, replica int, name string) (float64, error) {
	page, err := c.metrics(ctx, replica)
	if err != nil {
		return 0, err
	}
	return page.value(name)
}

// Where components serve their metrics, by their defaults.
var (
	apiServer = "https://" + controlplane.Endpoint().String()
	scheduler = "https://127.0.0.1:10259"
	pvBinder  = "https://127.0.0.1:10257" // the controller-manager
)

// kubeMetrics reads the metrics of a component of the control plane.
func (c *cluster) kubeMetrics(ctx context.Context, component string) (metrics, error) {
	config := c.plane.RESTConfig()
	config.Host, config.CAData, config.Insecure = component, nil, true // two of them make their certificates themselves
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for metrics: %w", err)
	}
	page, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s for metrics: %w", component, err)
	}
	return parseMetrics(bytes.NewReader(page))
}

// schedulerSeconds is how much processor time the scheduler has taken.
func (c *cluster) schedulerSeconds(ctx context.Context) (float64, error) {
	page, err := c.kubeMetrics(ctx, scheduler)
	if err != nil {
		return 0, err
	}
	return page.value("process_cpu_seconds_total")
}

// ready returns an error unless a replica is ready.
func (c *cluster) ready(ctx context.Context, replica int) error {
	page, err := c.request(ctx, http.MethodGet, "https://"+opsAddress(replica)+"/readyz")
	if err != nil {
		return err
	}
	return page.Close()
}

// request makes an HTTP request in the cluster's network.
func (c *cluster) request(ctx context.Context, method, url string) (io.ReadCloser, error) {
	client := http.Client{Transport: &http.Transport{
		DialContext:       c.namespace.DialContext,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // self-signed, on our own loopback
	}}
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", url, err)
	}
	request.Header.Set("Authorization", "Bearer "+metricsToken)
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("ask for %s: %s", url, response.Status)
	}
	return response.Body, nil
}

// writes are numbers of requests that change something, by resource.
type writes map[string]float64

// writes is how many requests that change something the first replica has made. Leases and
// TokenReviews are not for volumes.
func (c *cluster) writes(ctx context.Context) (writes, error) {
	page, err := c.metrics(ctx, 0)
	if err != nil {
		return nil, err
	}
	return page.sums("carve_controller_api_writes_total", func(labels map[string]string) string {
		return ofVolumes(labels["resource"])
	}), nil
}

// allWrites is how many requests that change something the API server has answered, of all clients.
func (c *cluster) allWrites(ctx context.Context) (writes, error) {
	page, err := c.kubeMetrics(ctx, apiServer)
	if err != nil {
		return nil, err
	}
	return page.answered(), nil
}

// answered are the requests that change something, by resource and subresource, on the API server's
// page of metrics.
func (m metrics) answered() writes {
	changing := []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
	return m.sums("apiserver_request_total", func(labels map[string]string) string {
		if !slices.Contains(changing, labels["verb"]) || ofVolumes(labels["resource"]) == "" {
			return ""
		}
		if labels["subresource"] != "" {
			return labels["resource"] + "/" + labels["subresource"]
		}
		return labels["resource"]
	})
}

// ofVolumes leaves out resources that are written without any volume.
func ofVolumes(resource string) string {
	switch resource {
	case "leases", "tokenreviews", "subjectaccessreviews":
		return ""
	}
	return resource
}

// since is what was written since before, per volume.
func (w writes) since(before writes, volumes int) writes {
	each := writes{}
	for resource, n := range w {
		if n > before[resource] {
			each[resource] = (n - before[resource]) / float64(volumes)
		}
	}
	return each
}

// all is the sum over the resources.
func (w writes) all() (sum float64) {
	for _, n := range w {
		sum += n
	}
	return sum
}

// String returns the sum, and what it is made of.
func (w writes) String() string {
	var parts []string
	for _, resource := range slices.Sorted(maps.Keys(w)) {
		parts = append(parts, fmt.Sprintf("%s %.1f", resource, w[resource]))
	}
	return fmt.Sprintf("%.1f: %s", w.all(), strings.Join(parts, ", "))
}
