//go:build e2e

package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAStatefulSetLeavesALostNodeWhereItsClassSaysSo cuts the power of a node
// for good, as far as Kubernetes knows. When the node turns up after all, what
// it still holds is an orphan, and removed if that was asked for.
func TestAStatefulSetLeavesALostNodeWhereItsClassSaysSo(t *testing.T) {
	s := begin(t)
	s.controllerArguments("--remove-orphans", "--orphan-grace=1m")
	s.storageClass("recreate", map[string]string{"carve.csi.local/on-node-loss": "recreate"})
	s.startSet("db", "recreate", 32*extent)
	const member = "db-0"
	s.running(member)
	victim := s.nodeOf(member)
	claim := s.claimOf("data-" + member)

	s.must(s.Cluster.Kill(s.ctx, victim), "cut the power")
	switchedOn := false
	t.Cleanup(func() {
		if !switchedOn {
			s.switchOn(victim)
		}
	})
	s.must(carve.Until(s.ctx, waitTimeout, "Kubernetes notices", func(ctx context.Context) error {
		node, err := s.CoreV1().Nodes().Get(ctx, victim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%s still counts as ready", victim)
	}), "wait")
	s.claimStays(claim, notReadyTime, s.otherNode(victim))

	_, err := s.Kubectl(s.ctx, nil, "taint", "node", victim, "node.kubernetes.io/out-of-service=gone:NoExecute")
	s.must(err, "say that the node is lost")
	s.must(carve.Until(s.ctx, waitTimeout, "the member has a claim of its own again", func(ctx context.Context) error {
		now, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Get(ctx, "data-"+member, metav1.GetOptions{})
		if err == nil && now.UID == claim.UID {
			err = fmt.Errorf("it has the old one, deleted at %v", now.DeletionTimestamp)
		}
		return err
	}), "wait")
	s.running(member)
	if got := s.nodeOf(member); got == victim {
		t.Errorf("%s runs on %s, which has no power", member, got)
	}
	s.must(carve.Until(s.ctx, waitTimeout, "an Event says why", func(ctx context.Context) error {
		events, err := s.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=NodeLost"})
		if err == nil && (len(events.Items) == 0 || !strings.Contains(events.Items[0].Message, victim)) {
			err = fmt.Errorf("got %+v", events.Items)
		}
		return err
	}), "wait")

	s.switchOn(victim)
	switchedOn = true
	// The grace period begins with the first pass that sees the node back, and a pass is made each minute.
	s.must(carve.Until(s.ctx, 2*waitTimeout, "the forgotten volume is removed", func(ctx context.Context) error {
		volumes, err := s.LogicalVolumes(ctx, victim)
		if err != nil {
			return err
		}
		for _, v := range volumes {
			if strings.Contains(strings.Join(v.Tags, " "), string(claim.UID)) {
				return fmt.Errorf("%s is there", v.Name)
			}
		}
		return nil
	}), "wait")
}

// notReadyTime is for how long a node that is merely not ready keeps its claims in the
// test. The controller looks for lost nodes every 30 seconds, and gives up claims of one that it
// found lost a minute before: it would do so in this time.
const notReadyTime = 125 * time.Second

// claimStays checks for a time that a claim and its volume are left alone. Claims that are
// made before and after it, on another node, show that a controller acts.
func (s *scope) claimStays(claim *corev1.PersistentVolumeClaim, least time.Duration, other string) {
	s.Helper()
	pv, err := s.CoreV1().PersistentVolumes().Get(s.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	s.must(err, "get the claim's PersistentVolume")
	stays := func(ctx context.Context) {
		s.Helper()
		if now := s.claimOf(claim.Name); now.UID != claim.UID || now.DeletionTimestamp != nil || now.Status.Phase != corev1.ClaimBound {
			s.Fatalf("the claim on a node that is merely not ready: want it as it was, got %+v, %+v", now.ObjectMeta, now.Status)
		}
		now, err := s.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if err != nil || now.UID != pv.UID || now.DeletionTimestamp != nil || now.Status.Phase != corev1.VolumeBound {
			s.Fatalf("the volume on a node that is merely not ready: want it as it was, got %+v, %v", now, err)
		}
	}
	bound := func(witness string) {
		s.Helper()
		s.start(witness, podOptions{bytes: extent, node: other, script: idle})
		s.must(carve.Until(s.ctx, waitTimeout, "the claim of "+witness+" is bound", func(ctx context.Context) error {
			stays(ctx)
			_, _, err := s.EphemeralVolume(ctx, s.namespace, witness, "scratch")
			return err
		}), "see that a controller acts")
	}
	bound("witness-before")
	began := time.Now()
	s.must(carve.Until(s.ctx, least+waitTimeout, "the time is over", func(ctx context.Context) error {
		stays(ctx)
		if past := time.Since(began); past < least {
			return fmt.Errorf("%v of %v have passed", past, least)
		}
		return nil
	}), "wait")
	bound("witness-after")
}

// otherNode returns a node that is not the one named.
func (s *scope) otherNode(node string) string {
	return s.nodes[slices.IndexFunc(s.nodes, func(other string) bool { return other != node })]
}

// switchOn gives a node its power back and lets Kubernetes use it.
func (s *scope) switchOn(node string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	s.must(s.Cluster.Start(ctx, node), "switch on "+node)
	if _, err := s.Kubectl(ctx, nil, "taint", "node", node, "node.kubernetes.io/out-of-service-"); err != nil && !strings.Contains(err.Error(), "not found") {
		s.Errorf("%v", err)
	}
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is well again")
}

// controllerArguments has the controller run with more arguments than users
// have by default, until the end of the test.
func (s *scope) controllerArguments(arguments ...string) {
	s.Helper()
	deployed, err := s.AppsV1().Deployments(carve.Namespace).Get(s.ctx, "carve-controller", metav1.GetOptions{})
	s.must(err, "get the controller's Deployment")
	s.arguments("deployment/carve-controller", deployed.Spec.Template.Spec.Containers, "controller", arguments)
}

// agentArguments does so with a container of the agent, on every node.
func (s *scope) agentArguments(container string, arguments ...string) {
	s.Helper()
	agents, err := s.AppsV1().DaemonSets(carve.Namespace).Get(s.ctx, "carve-node", metav1.GetOptions{})
	s.must(err, "get the agents' DaemonSet")
	s.arguments("daemonset/carve-node", agents.Spec.Template.Spec.Containers, container, arguments)
}

// arguments has a container of an object run with more arguments until the end of the test.
func (s *scope) arguments(object string, containers []corev1.Container, container string, arguments []string) {
	s.Helper()
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == container })
	before := containers[i].Args
	set := func(ctx context.Context, arguments []string) {
		s.Helper()
		s.setArguments(ctx, object, i, arguments)
		s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready")
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		set(ctx, before)
	})
	set(s.ctx, slices.Concat(before, arguments))
}

// setArguments replaces the arguments of a container of an object.
func (s *scope) setArguments(ctx context.Context, object string, container int, arguments []string) {
	s.Helper()
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": fmt.Sprintf("/spec/template/spec/containers/%d/args", container), "value": arguments}})
	s.must(err, "make a patch")
	_, err = s.Kubectl(ctx, nil, "patch", "--namespace", carve.Namespace, object, "--type=json", "--patch", string(patch))
	s.must(err, "change the arguments of "+object)
}

// startSet makes a StatefulSet of one Pod with one claim, named data.
func (s *scope) startSet(name, class string, bytes int64) {
	s.Helper()
	labels := map[string]string{"app": name}
	template := pod(name, podOptions{bytes: bytes, script: idle})
	template.Spec.Volumes = nil
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: mountPath}}
	_, err := s.AppsV1().StatefulSets(s.namespace).Create(s.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec:       claimSpec(podOptions{class: class, bytes: bytes}),
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err, "create the StatefulSet")
}

func (s *scope) claimOf(name string) *corev1.PersistentVolumeClaim {
	s.Helper()
	claim, err := s.CoreV1().PersistentVolumeClaims(s.namespace).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err, "get claim "+name)
	return claim
}
