//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	deployFolder = "../../deploy"
	startupTaint = "carve.csi.local/agent-not-ready"
)

// TestComponents installs carve-scheduler, the start-up taint and the I/O limits, as users do.
func TestComponents(t *testing.T) {
	s := begin(t)
	s.withComponents()
	t.Run("carve-scheduler places Pods by the sum of their claims and by the class's placement", testPlacement)
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
	t.Run("carve-scheduler starts Pods that name it", func(t *testing.T) {
		s := begin(t)
		p := pod("eager", podOptions{bytes: extent})
		p.Spec.SchedulerName = "carve"
		s.create(p)
		s.running(p.Name)
		s.wantMarker(p.Name)
	})
	t.Run("the kernel limits Pods of each class of service, while they run", testIOLimits)
}

// testPlacement fills one node until either claim of a Pod fits there, but not both. The class packs volumes, so that
// only the sum of the claims sends the Pod to the emptier node.
func testPlacement(t *testing.T) {
	s := begin(t)
	const class, each = "e2e-packed", 64 * extent
	small, large := s.nodes[0], s.nodes[1]
	s.storageClass(class, map[string]string{"carve.csi.local/placement": "least-free"})
	s.start("filler", podOptions{bytes: s.capacity(small) - each*3/2, node: small})
	s.running("filler")
	s.must(carve.Until(s.ctx, waitTimeout, "the capacity of both nodes is published", func(ctx context.Context) error {
		if _, err := s.CapacityBytes(ctx, large, class); err != nil {
			return err
		}
		free, err := s.CapacityBytes(ctx, small, class)
		if err == nil && free != each*3/2 {
			err = fmt.Errorf("capacity of %s: got %d, want %d", small, free, each*3/2)
		}
		return err
	}), "wait for the capacity")
	want := map[string]string{"pair-0": large, "pair-1": large, "single": small}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		p := pod(name, podOptions{class: class, bytes: each})
		p.Spec.SchedulerName = "carve"
		if name != "single" {
			second := *p.Spec.Volumes[0].DeepCopy()
			second.Name = "second"
			p.Spec.Volumes = append(p.Spec.Volumes, second)
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "second", MountPath: "/second"})
		}
		s.create(p)
		s.running(name)
		if got := s.nodeOf(name); got != want[name] {
			t.Errorf("node of %s: got %s, want %s", name, got, want[name])
		}
	}
	s.wantProvisioningFailures(0)
}

// withComponents installs the components until the end of the test.
func (s *scope) withComponents() {
	s.Helper()
	s.must(s.LoadScheduler(s.ctx, s.Output()), "load carve-scheduler's image")
	remove := []string{
		"delete", "--namespace", carve.Namespace, "--ignore-not-found",
		"--filename", filepath.Join(deployFolder, "components/startup-taint/policy.yaml"),
		"--filename", filepath.Join(deployFolder, "components/startup-taint/rbac.yaml"),
	}
	files, err := filepath.Glob(filepath.Join(deployFolder, "components/scheduler/*.yaml"))
	s.must(err, "list the files of the component")
	for _, file := range files {
		if filepath.Base(file) != "kustomization.yaml" {
			remove = append(remove, "--filename", file)
		}
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		_, err := s.Kubectl(ctx, nil, "apply", "--kustomize", "../deploy")
		s.must(err, "install the base again")
		_, err = s.Kubectl(ctx, nil, remove...)
		s.must(err, "remove the components")
		s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready")
	})
	_, err = s.Kubectl(s.ctx, nil, "apply", "--kustomize", "../deploy-more")
	s.must(err, "install the components")
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is ready")
}
