//go:build e2e

package tests

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/prometheus"
)

const (
	monitoringPage = "../../docs/how-to/monitoring.md"
	// prometheusAddress is in the cluster's network.
	prometheusAddress = "127.0.0.1:9090"
)

// TestPrometheusSeesThatTheControllerIsDown runs Prometheus with the configuration and the rules that users are given,
// and follows the documentation to see the first alert.
func TestPrometheusSeesThatTheControllerIsDown(t *testing.T) {
	s := begin(t)
	s.runPrometheus()
	config, err := s.Cluster.RESTConfig()
	s.must(err, "get a way into the cluster")
	asking, err := api.NewClient(api.Config{Address: "http://" + prometheusAddress, RoundTripper: &http.Transport{DialContext: config.Dial}})
	s.must(err, "make a client of Prometheus")
	asked := promapi.NewAPI(asking)
	until := func(what string, condition func(ctx context.Context) error) {
		t.Helper()
		s.must(carve.Until(s.ctx, waitTimeout, what, condition), "wait")
	}

	want := s.programs()
	until("Prometheus reads every program", func(ctx context.Context) error {
		all, err := asked.Targets(ctx)
		if err != nil {
			return err
		}
		var got []string
		for _, target := range all.Active {
			if target.Health != promapi.HealthGood {
				return fmt.Errorf("%s: %s, %s", target.ScrapeURL, target.Health, target.LastError)
			}
			got = append(got, string(target.Labels["job"]+" "+target.Labels["container"]+" "+target.Labels["node"]))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("want %q, got %q", want, got)
		}
		return nil
	})
	// What other tests did may be an alert for minutes.
	const down = "CarveControllerDown"
	state := func(ctx context.Context) (string, error) {
		all, err := asked.Alerts(ctx)
		for _, a := range all.Alerts {
			if a.Labels["alertname"] == down {
				return string(a.State), err
			}
		}
		return "", err
	}
	becomes := func(want string) {
		t.Helper()
		until(down+" is "+want, func(ctx context.Context) error {
			got, err := state(ctx)
			if err == nil && got != want {
				err = fmt.Errorf("want the state %q, got %q", want, got)
			}
			return err
		})
	}
	becomes("")
	scale := func(replicas string) {
		t.Helper()
		_, err := s.Kubectl(s.ctx, nil, "-n", carve.Namespace, "scale", "deployment", "--selector", "app.kubernetes.io/name=carve-controller", "--replicas", replicas)
		s.must(err, "scale the controller")
	}
	s.Cleanup(func() { s.must(s.WaitReady(context.Background(), waitTimeout), "Carve is ready again") })
	scale("0")
	becomes("pending")
	scale("2")
	becomes("")
}

// programs are the targets that Prometheus is to have, sorted: job, container and node.
func (s *scope) programs() (all []string) {
	s.Helper()
	for _, selector := range []string{"app.kubernetes.io/name=carve-controller", agentPods} {
		pods, err := s.ProgramPods(s.ctx, selector)
		s.must(err, "list the Pods of Carve")
		for _, pod := range pods {
			for _, container := range pod.Spec.Containers {
				all = append(all, "carve "+container.Name+" "+pod.Spec.NodeName)
			}
		}
	}
	slices.Sort(all)
	return all
}

// runPrometheus runs Prometheus until the end of the test. It reads the Pods as the documentation says, every second.
func (s *scope) runPrometheus() {
	s.Helper()
	_, token := s.monitor()
	binary, err := prometheus.Build(s.ctx, os.Stderr)
	s.must(err, "build Prometheus")
	dir := s.TempDir()
	credentials, config := filepath.Join(dir, "token"), filepath.Join(dir, "prometheus.yml")
	s.must(os.WriteFile(credentials, []byte(token), 0o600), "write the token")
	page, err := os.ReadFile(monitoringPage)
	s.must(err, "read the documentation")
	_, after, _ := strings.Cut(string(page), "```yaml\nscrape_configs:")
	documented, _, found := strings.Cut(after, "```")
	if !found {
		s.Fatalf("%s has no scrape_configs", monitoringPage)
	}
	documented = strings.Replace(documented, "/etc/prometheus/secrets/carve-metrics-token/token", credentials, 1)
	documented = strings.Replace(documented, "{role: pod, ", "{role: pod, kubeconfig_file: "+s.Cluster.Kubeconfig()+", ", 1)
	rules, err := filepath.Abs(filepath.Join(deployFolder, "monitoring/alerts.yaml"))
	s.must(err, "find the rules")
	settings, err := yaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{rules},
	})
	s.must(err, "write the configuration")
	s.must(os.WriteFile(config, append(settings, "scrape_configs:"+documented...), 0o600), "write the configuration")

	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddress)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	ended := make(chan error, 1)
	go func() { ended <- s.Cluster.RunProgram(command) }()
	s.Cleanup(func() {
		cancel()
		if err := <-ended; s.Failed() {
			s.Logf("Prometheus ended: %v, and printed\n%s", err, output.String())
		}
	})
}
