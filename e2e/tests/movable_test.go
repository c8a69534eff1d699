//go:build e2e

package tests

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/kube"
)

// mover is the name and the label of the Deployment whose Pods have a movable volume each.
const mover = "mover"

// TestAPodWhoseSchedulerIsKilledRunsWhereItsMovableVolumeIs kills the scheduler while it binds a
// Pod, when the claim is bound and the Pod has no node, and cordons the volume's node: the scheduler
// that starts at once finds another node better. It runs where it finds the volume in the end.
func TestAPodWhoseSchedulerIsKilledRunsWhereItsMovableVolumeIs(t *testing.T) {
	s := begin(t)
	plane := s.Cluster.ControlPlane()
	allow := s.refuseBindings()
	s.startMovers(1)
	first := s.movers(1, false)[0]
	s.Cleanup(func() { s.must(plane.StartComponent(context.Background(), kube.Scheduler), "have the scheduler run") })
	s.must(plane.KillComponent(s.ctx, kube.Scheduler), "kill the scheduler")
	if node := s.nodeOf(first.pod.Name); node != "" {
		t.Fatalf("the Pod has node %s, its binding should be refused", node)
	}
	uncordon := s.cordon(first.node)
	allow()
	s.must(plane.StartComponent(s.ctx, kube.Scheduler), "start the scheduler again")
	s.must(carve.Until(s.ctx, waitTimeout, "the volume is pinned, or gone with its Pod", func(ctx context.Context) error {
		pv, err := s.CoreV1().PersistentVolumes().Get(ctx, first.pv.Name, metav1.GetOptions{})
		if err == nil && pv.Spec.NodeAffinity == nil {
			return fmt.Errorf("it is %s, and not pinned", pv.Status.Phase)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}), "keep the Pod from the other node")
	uncordon()
	last := s.movers(1, true)[0]
	t.Logf("the volume was on %s, and is on %s; the Pod is the same: %t", first.node, last.node, last.pod.UID == first.pod.UID)
}

// TestANodeIsRemovedWhilePodsWithMovableVolumesMove drains a node, and deletes its Node object while
// the volumes that were there go. The last Pod is evicted when the disruption budget allows it.
func TestANodeIsRemovedWhilePodsWithMovableVolumesMove(t *testing.T) {
	s := begin(t)
	next, home := s.nodes[0], s.nodes[1] // The proxy of Services ends with the Node object of the first.
	uncordon := s.cordon(next)
	_, err := s.Kubectl(s.ctx, nil, "create", "poddisruptionbudget", mover, "--namespace", s.namespace, "--selector", "app="+mover, "--min-available", "1")
	s.must(err, "make the budget")
	s.startMovers(2)
	before := s.movers(2, true)
	for _, m := range before {
		if m.node != home {
			t.Fatalf("the volume of %s is on %q, want %s", m.pod.Name, m.node, home)
		}
		t.Logf("the volume of %s may move: %t", m.pod.Name, m.pv.Spec.NodeAffinity == nil)
	}
	uncordon()
	s.cordon(home)
	var said bytes.Buffer
	err = s.Cluster.Kubectl(s.ctx, nil, &said, &said, "drain", home, "--ignore-daemonsets", "--pod-selector", "app="+mover, "--timeout", waitTimeout.String())
	if err != nil || !strings.Contains(said.String(), "violate the pod's disruption budget") {
		t.Fatalf("drain: want an eviction that the budget delays, got %v:\n%s", err, said.String())
	}
	s.removeNode(home)
	for i, m := range s.movers(2, true) {
		if m.node != next {
			t.Errorf("%s runs on %s, want %s", m.pod.Name, m.node, next)
		}
		s.gone("a former PersistentVolume", func(ctx context.Context) error {
			_, err := s.CoreV1().PersistentVolumes().Get(ctx, before[i].pv.Name, metav1.GetOptions{})
			return err
		})
	}
	s.must(carve.Until(s.ctx, waitTimeout, "the former volumes are gone", func(ctx context.Context) error {
		volumes, err := s.LogicalVolumes(ctx, home)
		if slices.ContainsFunc(volumes, func(v carve.LogicalVolume) bool { return slices.Contains(v.Tags, "carve.ns="+s.namespace) }) {
			err = fmt.Errorf("%s has %v", home, volumes)
		}
		return err
	}), "wait")
}

// startMovers starts a Deployment of Pods with a movable volume each.
func (s *scope) startMovers(replicas int32) {
	s.Helper()
	s.storageClass("movable", map[string]string{"carve.csi.local/pod-volumes": "movable"})
	labels := map[string]string{"app": mover}
	_, err := s.AppsV1().Deployments(s.namespace).Create(s.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: mover},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod(mover, podOptions{class: "movable", bytes: 8 * extent, script: idle}).Spec},
		},
	}, metav1.CreateOptions{})
	s.must(err, "create the Deployment")
}

// moved is a Pod of the Deployment with its volume and the node that the volume is on.
type moved struct {
	pod  corev1.Pod
	pv   *corev1.PersistentVolume
	node string
}

// movers waits until there are so many Pods of the Deployment whose claims are bound, and until they
// run on the node of their volume if they are to.
func (s *scope) movers(want int, running bool) (all []moved) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the Pods have volumes", func(ctx context.Context) error {
		pods, err := s.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + mover})
		if err != nil {
			return err
		}
		all = nil
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				continue
			}
			_, pv, err := s.EphemeralVolume(ctx, s.namespace, p.Name, "scratch")
			if err != nil {
				return err
			}
			m := moved{p, pv, pv.Spec.CSI.VolumeAttributes["carve.csi.local/node"]}
			if running && (!ready(&p) || p.Spec.NodeName != m.node) {
				return fmt.Errorf("%s is %s on node %q, its volume is on %s", p.Name, p.Status.Phase, p.Spec.NodeName, m.node)
			}
			all = append(all, m)
		}
		if len(all) != want {
			return fmt.Errorf("there are %d Pods, want %d", len(all), want)
		}
		return nil
	}), "wait")
	return all
}

// refusal has the API server refuse the bindings of a namespace's Pods.
const refusal = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-refusal}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/binding]}]
  matchConditions: [{name: mine, expression: "request.namespace == '%s'"}]
  validations: [{expression: "false", message: this binding fails}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-refusal}
spec: {policyName: e2e-refusal, validationActions: [Deny]}
`

// refuseBindings has the API server refuse the bindings of the test's Pods, until allow is called.
func (s *scope) refuseBindings() (allow func()) {
	s.Helper()
	manifest := fmt.Sprintf(refusal, s.namespace)
	allow = func() {
		_, err := s.Kubectl(context.Background(), strings.NewReader(manifest), "delete", "--ignore-not-found", "--filename", "-")
		s.must(err, "allow bindings")
	}
	s.Cleanup(allow)
	_, err := s.Kubectl(s.ctx, strings.NewReader(manifest), "apply", "--filename", "-")
	s.must(err, "refuse bindings")
	s.must(carve.Until(s.ctx, waitTimeout, "bindings are refused", func(ctx context.Context) error {
		err := s.CoreV1().Pods(s.namespace).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Target: corev1.ObjectReference{Kind: "Node", Name: "none"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "this binding fails") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	}), "wait")
	return allow
}

// cordon keeps new Pods from a node until uncordon is called, or the end of the test.
func (s *scope) cordon(node string) (uncordon func()) {
	s.Helper()
	set := func(what string) {
		_, err := s.Kubectl(context.Background(), nil, what, node)
		s.must(err, what)
	}
	set("cordon")
	uncordon = func() { set("uncordon") }
	s.Cleanup(uncordon)
	return uncordon
}

// removeNode deletes a Node object, which the node has again at the end of the test. Its kubelet starts again
// then: it registers drivers for the Node object that it found when it started.
func (s *scope) removeNode(name string) {
	s.Helper()
	s.must(s.CoreV1().Nodes().Delete(s.ctx, name, metav1.DeleteOptions{}), "delete the Node object")
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		s.gone("what Kubernetes knew of drivers on "+name, func(context.Context) error {
			_, err := s.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
			return err
		})
		s.must(s.Cluster.Start(ctx, name), "make the Node object again")
		_, err := s.NodeExec(ctx, name, "pkill", "-KILL", "-x", "kubelet")
		s.must(err, "end the kubelet of "+name)
		s.must(s.WaitReady(ctx, waitTimeout), "Carve is well again")
	})
}
