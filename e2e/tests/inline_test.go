//go:build e2e

package tests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// inlineVolumes is the label that lets a namespace have inline volumes.
const inlineVolumes = "carve.csi.local/inline-volumes"

// moreThanANode is more than the disk of a node has, in bytes, and as much as an inline volume may have
// by default.
const moreThanANode = 10 << 30

// TestPodsDefineVolumesThemselvesWhereThatIsAllowed switches inline volumes on, as
// users do.
func TestPodsDefineVolumesThemselvesWhereThatIsAllowed(t *testing.T) {
	s := begin(t)
	example := filepath.Join(deployFolder, "examples/inline-pod.yaml")
	t.Run("they are off by default", func(t *testing.T) {
		s := within(t)
		s.must(s.ApplyFile(s.ctx, s.namespace, example), "apply the example")
		_, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "inline", `volume mode "Ephemeral" not supported`)
		s.must(err, "see why the Pod does not start")
	})
	s.withInlineVolumes()
	t.Run("a namespace has to be let in", func(t *testing.T) {
		s := within(t)
		s.must(carve.Until(s.ctx, waitTimeout, "the policy is in force", func(ctx context.Context) error {
			err := s.ApplyFile(ctx, s.namespace, example)
			if err == nil || !strings.Contains(err.Error(), "use a generic ephemeral volume") {
				return fmt.Errorf("the Pod: want it refused, got %w", err)
			}
			return nil
		}), "see the Pod refused")
	})
	t.Run("a volume is made with the Pod and goes with it", func(t *testing.T) {
		s := within(t)
		s.letIn()
		before := map[string]int64{}
		for _, node := range s.nodes {
			before[node] = s.capacity(node)
		}
		s.must(s.ApplyFile(s.ctx, s.namespace, example), "apply the example")
		s.running("inline")
		node := s.nodeOf("inline")
		if mounts := s.exec("inline", "cat", "/proc/mounts"); !strings.Contains(mounts, " /scratch xfs ") {
			t.Errorf("mounts in the Pod: want xfs at /scratch, got\n%s", mounts)
		}
		s.must(carve.Until(s.ctx, waitTimeout, "the volume counts", func(ctx context.Context) error {
			return s.wantCapacity(ctx, node, before[node]-1<<30)
		}), "see the capacity")
		if tags := s.node(node, "lvs", "--noheadings", "--options", "lv_tags", "carve"); !strings.Contains(tags, "carve.pod=inline") {
			t.Errorf("tags of the volumes: want the Pod's name, got %s", tags)
		}
		s.remove("inline")
		s.must(carve.Until(s.ctx, waitTimeout, "the space is free", func(ctx context.Context) error {
			return s.wantCapacity(ctx, node, before[node])
		}), "see the capacity")
	})
	t.Run("it goes with a Pod that was deleted by force", func(t *testing.T) {
		s := begin(t)
		s.letIn()
		s.startInline("forced", s.nodes[0], 64*extent)
		s.running("forced")
		zero := int64(0)
		s.must(s.CoreV1().Pods(s.namespace).Delete(s.ctx, "forced", metav1.DeleteOptions{GracePeriodSeconds: &zero}), "delete the Pod by force")
		// That the node is as before is checked when the test ends.
	})
	t.Run("an Event on the Pod says that it is more than the node has", func(t *testing.T) {
		s := within(t)
		s.letIn()
		s.startInline("large", s.nodes[0], moreThanANode)
		_, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "large", "ResourceExhausted")
		s.must(err, "see why the Pod does not start")
	})
}

// withInlineVolumes switches inline volumes on until the end of the test.
func (s *scope) withInlineVolumes() {
	s.Helper()
	// Kubernetes does not let the modes of a CSIDriver be changed.
	replace := func(ctx context.Context, folder string) {
		s.Helper()
		_, err := s.Kubectl(ctx, nil, "delete", "csidriver", carve.Driver, "--ignore-not-found")
		s.must(err, "delete the CSIDriver")
		_, err = s.Kubectl(ctx, nil, "apply", "--kustomize", folder)
		s.must(err, "apply "+folder)
		s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready")
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
		defer cancel()
		_, err := s.Kubectl(ctx, nil, "delete", "--ignore-not-found", "--filename", filepath.Join(deployFolder, "components/inline-volumes/policy.yaml"))
		s.must(err, "remove the policy")
		replace(ctx, "../deploy")
	})
	replace(s.ctx, "../deploy-inline")
}

// letIn lets the test's namespace have inline volumes, and waits until the API
// server knows it.
func (s *scope) letIn() {
	s.Helper()
	_, err := s.Kubectl(s.ctx, nil, "label", "namespace", s.namespace, inlineVolumes+"=allowed")
	s.must(err, "label the namespace")
	s.must(carve.Until(s.ctx, waitTimeout, "the namespace is let in", func(ctx context.Context) error {
		_, err := s.CoreV1().Pods(s.namespace).Create(ctx, inlinePod("probe", s.nodes[0], extent), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}), "let the namespace in")
}

// startInline creates a Pod with an inline volume on a node.
func (s *scope) startInline(name, node string, bytes int64) {
	s.Helper()
	s.create(inlinePod(name, node, bytes))
}

// inlinePod is pod with an inline volume instead of a generic ephemeral one.
func inlinePod(name, node string, bytes int64) *corev1.Pod {
	p := pod(name, podOptions{bytes: bytes, node: node})
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: carve.Driver, VolumeAttributes: map[string]string{"carve.csi.local/size": fmt.Sprint(bytes)},
	}}
	return p
}
