//go:build e2e

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/kube"
	"github.com/carve-csi/carve/e2e/netns"
)

// newNamespace makes a network namespace for as long as the test runs.
func newNamespace(ctx context.Context, t *testing.T, name string) netns.Namespace {
	t.Helper()
	// An aborted run may have left its own.
	if err := netns.Remove(ctx, name); err != nil {
		t.Fatal(err)
	}
	namespace, err := netns.Create(name, netns.DefaultGateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return namespace
}

func TestRealControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	binary, err := kube.Build(ctx, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(ctx, t, "carve-test-controlplane")
	options := Options{Dir: t.TempDir(), Namespace: namespace, Kube: binary, Progress: t.Output()}
	c, err := Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("the controller-manager makes service accounts", func(t *testing.T) {
		waitFor(ctx, t, func() error {
			_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	})
	t.Run("a node gets a Pod subnet", func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(ctx, t, func() error {
			node, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
			if err == nil && node.Spec.PodCIDR == "" {
				return errNotYet
			}
			return err
		})
	})
	t.Run("a second start changes nothing", func(t *testing.T) {
		before, err := namespace.Processes()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Start(ctx, options); err != nil {
			t.Fatal(err)
		}
		if after, err := namespace.Processes(); err != nil || len(after) != len(before) {
			t.Errorf("processes: %v before, %v after, %v", before, after, err)
		}
	})
	t.Run("the API server comes back with what it held", func(t *testing.T) {
		if err := c.StopComponent(ctx, kube.APIServer); err != nil {
			t.Fatal(err)
		}
		if running, err := c.Running(kube.APIServer); err != nil || running {
			t.Errorf("Running after StopComponent: %t, %v", running, err)
		}
		if c.Healthy(ctx, kube.APIServer) == nil {
			t.Error("Healthy after StopComponent: want an error, got none")
		}
		if err := c.StartComponent(ctx, kube.APIServer); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("stop leaves no process and may be called again", func(t *testing.T) {
		for range 2 {
			if err := c.Stop(ctx); err != nil {
				t.Error(err)
			}
		}
		if pids, err := namespace.Processes(); err != nil || len(pids) > 0 {
			t.Errorf("processes after Stop: %v, %v", pids, err)
		}
	})
}

// TestAComponentIsGoneWhenItsMemoryIsFreed ends a process that has much memory to free, which it does
// before it closes its sockets: until then its port is taken, and the next start fails.
func TestAComponentIsGoneWhenItsMemoryIsFreed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	namespace := newNamespace(ctx, t, "carve-test-component")
	plane := &ControlPlane{namespace: namespace}
	for _, end := range []func(context.Context, string) error{plane.StopComponent, plane.KillComponent} {
		dd, err := exec.LookPath("dd")
		if err != nil {
			t.Fatal(err)
		}
		const component = "large-component"
		command := &exec.Cmd{Path: dd, Args: []string{component, "if=/dev/zero", "of=/dev/null", "bs=512M"}}
		if err := namespace.Start(command); err != nil {
			t.Fatal(err)
		}
		waitFor(ctx, t, func() error {
			status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(command.Process.Pid), "statm"))
			if err != nil {
				return err
			}
			var size, resident int
			if _, err := fmt.Sscan(string(status), &size, &resident); err != nil {
				return err
			}
			if resident*os.Getpagesize() < 512<<20 {
				return errNotYet
			}
			return nil
		})
		if err := end(ctx, component); err != nil {
			t.Error(err)
		}
		if pids, err := namespace.Processes(); err != nil || len(pids) > 0 {
			t.Errorf("processes after its end: %v, %v", pids, err)
		}
		_ = command.Wait() // It was ended by a signal.
	}
}

var errNotYet = errors.New("not yet")

// waitFor polls until condition returns nil.
func waitFor(ctx context.Context, t *testing.T, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
