//go:build apiserver

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// simulate runs the Cluster Autoscaler's simulation, see pkg/scheduler/plugin/autoscaler.
func simulate(t *testing.T, input []byte, args ...string) string {
	t.Helper()
	program := os.Getenv("AUTOSCALER")
	if program == "" {
		t.Fatal("AUTOSCALER does not name the simulation; run make test-apiserver")
	}
	ask := exec.CommandContext(t.Context(), program, args...)
	ask.Stdin = bytes.NewReader(input)
	out, err := ask.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func says(t *testing.T, node, words string) {
	t.Helper()
	last := ""
	waittest.Until(t, "of the node is said: "+words, func() bool {
		if now := simulate(t, nil, "remove", node); now != last {
			t.Log(now)
			last = now
		}
		return strings.Contains(last, words)
	})
}

const (
	mayGo  = "removable"
	mayNot = "didn't match PersistentVolume's node affinity"
)

func TestTheAutoscalerRemovesANodeWhoseVolumesFitElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		class func(*storagev1.StorageClass)
		// Free space of the other node when the node is marked; the Pod's volume has 100 MiB.
		before, after    int64
		unmarked, marked string
	}{
		"not with a pinned volume":                     {class: nil, before: gib, after: gib, unmarked: mayNot, marked: mayNot},
		"with a movable volume":                        {class: movable, before: gib, after: gib, unmarked: mayGo, marked: mayGo},
		"with a movable volume that would fit nowhere": {class: movable, before: 50 * mib, after: 50 * mib, unmarked: mayGo, marked: mayNot},
		"with one that does not fit any more":          {class: movable, before: gib, after: 50 * mib, unmarked: mayGo, marked: mayNot},
	} {
		t.Run(name, func(t *testing.T) {
			w := movingIn(t, test.class, time.Hour)
			startSet(t, w.client, true)
			claim, pod := w.running(t, "db-0-data", "")
			node := pod.Spec.NodeName
			w.nodes[other(node)].Resize("local", test.before)
			says(t, node, test.unmarked)
			w.mark(t, node)
			w.nodes[other(node)].Resize("local", test.after)
			says(t, node, test.marked)
			w.endSet(t, true, claim, claim)
		})
	}
}

// pool is a node group of the Cluster Autoscaler. Each node has space for four volumes of a
// ReplicaSet, whose Pods no kubelet runs.
type pool struct {
	*world
	net *uplinktest.Network
	set *appsv1.ReplicaSet
}

func (p *pool) template(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kindLabel: "four", v1.LabelHostname: name}}, Status: forPods()}
}

func (p *pool) add(t *testing.T) string {
	t.Helper()
	node := p.template("template")
	node.Labels[names.LabelTemplateNode] = "true"
	return simulate(t, must.Get(json.Marshal(node))(t), "add")
}

func (p *pool) pods(t *testing.T) []v1.Pod {
	t.Helper()
	return must.Get(p.client.CoreV1().Pods(ours).List(t.Context(), metav1.ListOptions{LabelSelector: "app=cache"}))(t).Items
}

// scheduled waits until placed Pods have a node and the scheduler has rejected the waiting
// ones.
func (p *pool) scheduled(t *testing.T, placed, waiting int) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%d Pods have a node, %d fit nowhere", placed, waiting), func() bool {
		have, fit := 0, 0
		for _, pod := range p.pods(t) {
			if pod.Spec.NodeName != "" {
				have++
				continue
			}
			claim, err := p.client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), pod.Name+"-data", metav1.GetOptions{})
			for _, c := range pod.Status.Conditions {
				if err == nil && claim.Annotations[volume.AnnSelectedNode] == "" && c.Type == v1.PodScheduled && c.Reason == v1.PodReasonUnschedulable {
					fit++
				}
			}
		}
		return have == placed && fit == waiting
	})
}

func (p *pool) scale(t *testing.T, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	p.set = must.Get(p.client.AppsV1().ReplicaSets(ours).Patch(t.Context(), p.set.Name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	waittest.Until(t, "there are so many Pods", func() bool { return len(p.pods(t)) == replicas })
}

func (p *pool) drain(t *testing.T, node string) {
	t.Helper()
	must.Succeed(t, patchNode(p.client, node, `{"spec":{"unschedulable":true}}`))
	for _, pod := range p.pods(t) {
		if pod.Spec.NodeName == node {
			must.Succeed(t, p.client.CoreV1().Pods(ours).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
		}
	}
	waittest.Until(t, "no volume is left on "+node, func() bool { return len(p.nodes[node].Volumes()) == 0 })
	must.Succeed(t, p.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
	p.net.Detach(node)
}

func TestTheAutoscalerAddsAndRemovesNodesForVolumes(t *testing.T) {
	client := connectToAPIServer(t)
	p := &pool{world: &world{client: client, nodes: map[string]*lvmdfake.Server{}, namespace: ours}}
	t.Cleanup(func() { logPlacement(t, client, ours) })
	install(t, client)
	apply(t, client, "../../deploy/components/startup-taint/rbac.yaml")
	p.class(t, func(c *storagev1.StorageClass) {
		movable(c)
		c.Annotations = map[string]string{names.AnnotationTemplateCapacity: "four=1Gi"}
	})
	_, net, stop := startOn(t, p.world, Options{Client: asController(t), Namespace: ours, TemplateLabel: kindLabel, RemoveStartupTaint: true})
	p.net = net
	t.Cleanup(stop)

	spec, claim := scheduledPod(true)
	spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists}, {Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}} // no kubelet runs
	claim.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Gi")
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec = claim
	var large *v1.Pod
	waittest.Until(t, "the Pod is taken", func() (taken bool) { // once the namespace has its service account
		var err error
		large, err = client.CoreV1().Pods(ours).Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: spec}, metav1.CreateOptions{})
		return err == nil
	})
	waittest.Until(t, "no node of the pool helps a Pod whose volume is larger", func() bool { return strings.Contains(p.add(t), "large fits on no further node") })
	must.Succeed(t, client.CoreV1().Pods(ours).Delete(t.Context(), large.Name, metav1.DeleteOptions{}))

	claim.Resources.Requests[v1.ResourceStorage] = resource.MustParse("256Mi")
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec = claim
	labels, ten := map[string]string{"app": "cache"}, int32(10)
	p.set = must.Get(client.AppsV1().ReplicaSets(ours).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "cache"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &ten, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = client.AppsV1().ReplicaSets(ours).Delete(context.Background(), "cache", metav1.DeleteOptions{})
	})

	placed := 0
	for i := 1; ; i++ {
		p.scheduled(t, placed, 10-placed)
		needed := p.add(t)
		if t.Logf("with %d nodes, %d Pods have one; to add: %s", i-1, placed, needed); placed == 10 {
			if needed != "0" || i-1 != 3 {
				t.Fatalf("all Pods have one of %d nodes, the autoscaler adds %s, want 3 and 0", i-1, needed)
			}
			break
		}
		if needed != "1" {
			t.Fatalf("%d Pods wait, and the autoscaler adds %s nodes, want 1", 10-placed, needed)
		}
		name := fmt.Sprint("n", i)
		node := p.template(name)
		node.Spec.Taints = []v1.Taint{{Key: names.TaintAutoscaler, Effect: v1.TaintEffectNoExecute}}
		must.Get(client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
		if again := p.add(t); again != "0" {
			t.Fatalf("while a node starts, the autoscaler adds %s, want 0", again)
		}
		must.Succeed(t, patchNode(client, name, `{"metadata":{"labels":{"`+names.TopologyNode+`":"`+name+`"}}}`))
		p.nodes[name] = lvmdfake.New(name, lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
		net.Attach(p.nodes[name])
		waittest.Until(t, "the node has started", func() bool {
			now, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && !slices.ContainsFunc(now.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == names.TaintAutoscaler })
		})
		placed = min(10, placed+4)
	}

	p.scale(t, 3)
	p.scheduled(t, 3, 0)
	for _, node := range []string{"n3", "n2"} {
		p.mark(t, node)
		says(t, node, mayGo)
		p.drain(t, node)
		p.scheduled(t, 3, 0)
		if again := p.add(t); again != "0" {
			t.Errorf("when %s is gone, the autoscaler adds %s, want 0", node, again)
		}
	}
	says(t, "n1", "fits on no other node")
	p.scale(t, 0)
	waittest.Until(t, "no volume is left", func() bool { return len(p.nodes["n1"].Volumes()) == 0 })
}
