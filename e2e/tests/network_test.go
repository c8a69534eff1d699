//go:build e2e

package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	servicePort = 7070
	greeting    = "greetings from the other node"
)

// TestPodsAreReachedByNameAddressAndThroughTheAPIServer holds the cluster
// against what users expect of one: tests that need it would blame Carve.
func TestPodsAreReachedByNameAddressAndThroughTheAPIServer(t *testing.T) {
	s := beside(t)
	s.networkPod("server", s.nodes[0], fmt.Sprintf("echo serving; while true; do echo %q | nc -l -p %d; done", greeting, servicePort))
	s.networkPod("client", s.nodes[1], "echo asking; exec sleep 1000000")
	_, err := s.CoreV1().Services(s.namespace).Create(s.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "server"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(servicePort)}},
		},
	}, metav1.CreateOptions{})
	s.must(err, "make the Service")
	s.running("server", "client")

	for _, name := range []string{"server", "server." + s.namespace + ".svc.cluster.local"} {
		s.must(carve.Until(s.ctx, waitTimeout, "the client reaches "+name, func(ctx context.Context) error {
			output, err := s.PodExec(ctx, s.namespace, "client", "nc", "-w", "10", name, "80")
			if err == nil && !strings.Contains(output, greeting) {
				err = fmt.Errorf("want %q, got %q", greeting, output)
			}
			return err
		}), "reach a Pod on another node through a Service")
	}
	for pod, want := range map[string]string{"server": "serving", "client": "asking"} {
		output, err := s.Kubectl(s.ctx, nil, "logs", "--namespace", s.namespace, pod)
		if err != nil || !strings.Contains(output, want) {
			t.Errorf("kubectl logs %s: want %q, got %q, %v", pod, want, output, err)
		}
	}
	s.must(carve.Until(s.ctx, waitTimeout, "the forwarded port answers", s.throughPortForward), "kubectl port-forward")
}

// networkPod starts a Pod without a volume on a node.
func (s *scope) networkPod(name, node, script string) {
	s.Helper()
	grace := int64(0)
	_, err := s.CoreV1().Pods(s.namespace).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			Containers: []corev1.Container{{
				Name: "app", Image: workload, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", script},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err, "create Pod "+name)
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// throughPortForward reads the server's greeting through kubectl port-forward,
// which listens inside the cluster's network namespace.
func (s *scope) throughPortForward(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	printed, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		var stderr strings.Builder
		err := s.Cluster.Kubectl(ctx, nil, stdout, &stderr, "port-forward", "--namespace", s.namespace, "pod/server", fmt.Sprintf(":%d", servicePort))
		_ = stdout.CloseWithError(fmt.Errorf("kubectl port-forward ended: %w: %s", errors.Join(err, io.EOF), stderr.String()))
		ended <- err
	}()
	defer func() {
		cancel()
		_ = printed.Close()
		<-ended
	}()
	lines := bufio.NewReader(printed)
	var address string
	for address == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if match := forwarding.FindStringSubmatch(line); match != nil {
			address = match[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	config, err := s.Cluster.RESTConfig()
	if err != nil {
		return err
	}
	var connection net.Conn
	if connection, err = config.Dial(ctx, "tcp", address); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	if err := connection.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	line, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(line); got != greeting {
		return fmt.Errorf("want %q, got %q", greeting, got)
	}
	return nil
}
