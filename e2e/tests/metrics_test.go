//go:build e2e

package tests

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// controllerPods are the controller's replicas.
const controllerPods = "app.kubernetes.io/name=carve-controller"

// monitoring reads the metrics of the controller's replicas.
type monitoring struct {
	web   *http.Client
	token string
}

func (s *scope) monitoring() *monitoring {
	s.Helper()
	web, token := s.monitor()
	return &monitoring{web: web, token: token}
}

// connectedNodes returns how many nodes have an uplink to a replica of the controller, and
// which process says so: the time at which it started.
func (m *monitoring) connectedNodes(ctx context.Context, replica *corev1.Pod) (nodes int, process string, err error) {
	code, body, err := get(ctx, m.web, fmt.Sprintf("https://%s:9808/metrics", replica.Status.PodIP), m.token)
	if err != nil || code != http.StatusOK {
		return 0, "", fmt.Errorf("metrics of %s: %d, %w", replica.Name, code, err)
	}
	text, process := sample(body, "carve_controller_connected_nodes"), sample(body, "process_start_time_seconds")
	if nodes, err = strconv.Atoi(text); err != nil || process == "" {
		return 0, "", fmt.Errorf("metrics of %s: connected nodes %q, started %q", replica.Name, text, process)
	}
	return nodes, process, nil
}

// sample returns the value of a metric without labels, "" if there is none.
func sample(body, name string) string {
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
