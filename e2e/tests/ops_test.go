//go:build e2e

package tests

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestEveryProgramReportsItsHealthAndGuardsItsMetrics asks each Pod of Carve for
// what an operator's monitoring asks of it.
func TestEveryProgramReportsItsHealthAndGuardsItsMetrics(t *testing.T) {
	s := beside(t)
	web, token := s.monitor()
	for _, program := range []struct {
		name, pods string
		port       int
		metric     string
	}{
		{"controller", "app.kubernetes.io/name=carve-controller", 9808, "carve_controller_connected_nodes"},
		{"lvmd", agentPods, 9808, "carve_lvmd_lvm_command_seconds"},
		{"node", agentPods, 9809, "carve_node_registered"},
	} {
		t.Run(program.name, func(t *testing.T) {
			pods, err := s.ProgramPods(s.ctx, program.pods)
			if err != nil || len(pods) < 2 {
				t.Fatalf("Pods of %s: want at least 2, got %d, %v", program.name, len(pods), err)
			}
			for _, pod := range pods {
				address := fmt.Sprintf("%s:%d", pod.Status.PodIP, program.port)
				for _, path := range []string{"/healthz", "/readyz"} {
					if err := carve.Until(s.ctx, waitTimeout, "it reports that it is well", func(ctx context.Context) error {
						code, body, err := get(ctx, web, "https://"+address+path, "")
						if err == nil && code != http.StatusOK {
							err = fmt.Errorf("%s of %s: want 200, got %d %q", path, pod.Name, code, body)
						}
						return err
					}); err != nil {
						t.Error(err)
					}
				}
				for _, wrong := range []string{"", "guessed"} {
					if code, body, err := get(s.ctx, web, "https://"+address+"/metrics", wrong); err != nil || code < 400 || strings.Contains(body, program.metric) {
						t.Errorf("/metrics of %s with the token %q: want a refusal, got %d, %v", pod.Name, wrong, code, err)
					}
				}
				if code, _, err := get(s.ctx, web, "http://"+address+"/metrics", token); err == nil && code == http.StatusOK {
					t.Errorf("/metrics of %s without TLS: want a refusal, got %d", pod.Name, code)
				}
				// The kubelet mounts a Secret that is younger than the Pod after a while.
				if err := carve.Until(s.ctx, waitTimeout, "the metrics can be read", func(ctx context.Context) error {
					code, body, err := get(ctx, web, "https://"+address+"/metrics", token)
					if err == nil && (code != http.StatusOK || !strings.Contains(body, program.metric)) {
						err = fmt.Errorf("/metrics of %s: want 200 with %s, got %d", pod.Name, program.metric, code)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// monitor returns what reads the metrics of Pods: a client, and the token.
func (s *scope) monitor() (web *http.Client, token string) {
	s.Helper()
	secret, err := s.CoreV1().Secrets(carve.Namespace).Get(s.ctx, "carve-metrics-token", metav1.GetOptions{})
	s.must(err, "get the metrics token")
	config, err := s.Cluster.RESTConfig()
	s.must(err, "get a way into the cluster")
	web = &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DialContext: config.Dial,
			// The certificate is made at every start, by no authority.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		},
	}
	s.Cleanup(web.CloseIdleConnections)
	return web, string(secret.Data["token"])
}

func get(ctx context.Context, web *http.Client, url, token string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := web.Do(request)
	if err != nil {
		return 0, "", err
	}
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", err
	}
	return response.StatusCode, string(content), response.Body.Close()
}
