//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	deployFolder = "../../deploy"
	startupTaint = "carve.csi.local/agent-not-ready"
)

// TestTheComponentsOfferWhatTheBaseDoesNot installs the second scheduler, the scheduler extender, the start-up
// taint and the I/O limits, as users do. The cluster's own scheduler uses the extender.
func TestTheComponentsOfferWhatTheBaseDoesNot(t *testing.T) {
	s := begin(t)
	s.withComponents()
	t.Run("the extender places Pods by the sum of their claims", func(t *testing.T) {
		s := begin(t)
		s.extenderKnowsNodes()
		const pods, each = 4, 64 * extent
		small, large := s.nodes[0], s.nodes[1]
		s.start("filler", podOptions{bytes: s.capacity(small) - each*3/2, node: small})
		s.running("filler")
		var names []string
		for i := range pods {
			// Either claim fits the small node, both do not.
			p := pod(fmt.Sprintf("pair-%d", i), podOptions{bytes: each})
			second := *p.Spec.Volumes[0].DeepCopy()
			second.Name = "second"
			p.Spec.Volumes = append(p.Spec.Volumes, second)
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "second", MountPath: "/second"})
			s.create(p)
			names = append(names, p.Name)
		}
		s.running(names...)
		for _, name := range names {
			if got := s.nodeOf(name); got != large {
				t.Errorf("%s: want it on %s, where both of its claims fit, got %s", name, large, got)
			}
		}
		s.wantProvisioningFailures(0)
		if asked := s.extenderRequests(); asked < pods {
			t.Errorf("requests of the scheduler: want at least %d, got %d", pods, asked)
		}
	})
	t.Run("the start-up taint goes when the node can take volumes", func(t *testing.T) {
		s := begin(t)
		node := s.nodes[1]
		_, err := s.Kubectl(s.ctx, nil, "taint", "node", node, startupTaint+"=:NoSchedule")
		s.must(err, "taint the node")
		s.must(carve.Until(s.ctx, waitTimeout, "the taint is gone", func(ctx context.Context) error {
			got, err := s.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, taint := range got.Spec.Taints {
				if taint.Key == startupTaint {
					return errors.New("it is there")
				}
			}
			return nil
		}), "wait")
		s.start("guest", podOptions{bytes: extent, node: node})
		s.running("guest")
	})
	t.Run("the second scheduler starts Pods that name it", func(t *testing.T) {
		s := begin(t)
		p := pod("eager", podOptions{bytes: extent})
		p.Spec.SchedulerName = "carve"
		s.create(p)
		s.running(p.Name)
		s.wantMarker(p.Name)
	})
	t.Run("the kernel limits Pods of each class of service, while they run", testIOLimits)
}

// withComponents installs the components until the end of the test.
func (s *scope) withComponents() {
	s.Helper()
	plane := s.Cluster.ControlPlane()
	s.must(s.LoadScheduler(s.ctx, s.Output()), "load the second scheduler's image")
	data, err := plane.ExtenderSecret("carve-extender.carve-system.svc")
	s.must(err, "make the extender's certificates")
	_, err = s.CoreV1().Secrets(carve.Namespace).Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "carve-extender-tls"}, Data: data}, metav1.CreateOptions{})
	s.must(err, "make the extender's Secret")
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		s.must(plane.UseNoExtender(ctx), "let the scheduler do without the extender")
		_, err := s.Kubectl(ctx, nil, "apply", "--kustomize", "../deploy")
		s.must(err, "install the base again")
		_, err = s.Kubectl(ctx, nil, "delete", "--namespace", carve.Namespace, "--ignore-not-found",
			"--filename", filepath.Join(deployFolder, "components/scheduler/config.yaml"),
			"--filename", filepath.Join(deployFolder, "components/scheduler/policy.yaml"),
			"--filename", filepath.Join(deployFolder, "components/scheduler/rbac.yaml"),
			"--filename", filepath.Join(deployFolder, "components/scheduler/scheduler.yaml"),
			"--filename", filepath.Join(deployFolder, "components/scheduler-extender/service.yaml"),
			"--filename", filepath.Join(deployFolder, "components/startup-taint/policy.yaml"),
			"--filename", filepath.Join(deployFolder, "components/startup-taint/rbac.yaml"))
		s.must(err, "remove the components")
		if err := s.CoreV1().Secrets(carve.Namespace).Delete(ctx, "carve-extender-tls", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Errorf("remove the extender's Secret: %v", err)
		}
		s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready")
	})
	_, err = s.Kubectl(s.ctx, nil, "apply", "--kustomize", "../deploy-more")
	s.must(err, "install the components")
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is ready")
	service, err := s.CoreV1().Services(carve.Namespace).Get(s.ctx, "carve-extender", metav1.GetOptions{})
	s.must(err, "get the extender's Service")
	example, err := os.ReadFile(filepath.Join(deployFolder, "examples/kube-scheduler.yaml"))
	s.must(err, "read the example")
	s.must(plane.UseExtender(s.ctx, example, fmt.Sprintf("https://%s:9444", service.Spec.ClusterIP)), "let the scheduler use the extender")
}

// extenderKnowsNodes waits until every replica has heard of every node. Before, it lets the
// published capacity decide, which is compared with one claim at a time.
func (s *scope) extenderKnowsNodes() {
	s.Helper()
	m := s.monitoring()
	s.must(carve.Until(s.ctx, waitTimeout, "every replica knows every node", func(ctx context.Context) error {
		replicas, err := s.ProgramPods(ctx, "app.kubernetes.io/name=carve-controller")
		if err != nil {
			return err
		}
		for i := range replicas {
			if nodes, _, err := m.connectedNodes(ctx, &replicas[i]); err != nil || nodes != len(s.nodes) {
				return fmt.Errorf("%s knows %d nodes, want %d: %w", replicas[i].Name, nodes, len(s.nodes), err)
			}
		}
		return nil
	}), "wait for the nodes' reports")
}

// extenderRequests counts how often the scheduler asked which nodes will do, and got
// an answer.
func (s *scope) extenderRequests() (asked int) {
	s.Helper()
	web, token := s.monitor()
	pods, err := s.ProgramPods(s.ctx, "app.kubernetes.io/name=carve-controller")
	s.must(err, "list the controllers")
	for _, p := range pods {
		s.must(carve.Until(s.ctx, waitTimeout, "the metrics can be read", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			code, body, err := get(ctx, web, fmt.Sprintf("https://%s:9808/metrics", p.Status.PodIP), token)
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("metrics of %s: %d, %w", p.Name, code, err)
			}
			for line := range strings.Lines(body) {
				var n int
				if name, value, ok := strings.Cut(line, "} "); ok && strings.HasPrefix(name, "carve_controller_extender_seconds_count{") &&
					strings.Contains(name, `verb="filter"`) && strings.Contains(name, `code="200"`) {
					if _, err := fmt.Sscan(value, &n); err != nil {
						return err
					}
					asked += n
				}
			}
			return nil
		}), "read the metrics of "+p.Name)
	}
	return asked
}
