//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

// The cluster is so large that the plugin leaves out nodes without space.
func TestCarveSchedulerFindsTheNodesOfALargeClusterThatHaveSpace(t *testing.T) {
	w, class := schedulerWorld(t, nil)
	for i := range 110 {
		name := fmt.Sprint("full-", i)
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.TopologyNode: name}}, Status: forPods()}
		must.Get(w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { _ = w.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	run := func(name string, change func(*v1.PodSpec)) {
		spec, _ := scheduledPod(true)
		spec.SchedulerName = carveScheduler
		template := &spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec
		template.StorageClassName, template.Resources.Requests[v1.ResourceStorage] = &class, resource.MustParse("2Gi") // the size of a node
		if change != nil {
			change(&spec)
		}
		w.runPodOf(t, name, spec)
	}
	run("first", nil)
	w.waits(t, "first", "nodes are available: node(s) did not have enough free storage")
	w.nodes["n2"].Resize("local", 8*gib)
	if node := w.isPlaced(t, "first", "first-data"); node != "n2" {
		t.Errorf("the first Pod is on %s, want n2, which has space now", node)
	}
	run("second", nil)
	if node := w.isPlaced(t, "second", "second-data"); node != "n2" {
		t.Errorf("the second Pod is on %s, want n2, which alone has space", node)
	}
	run("third", func(s *v1.PodSpec) { s.NodeSelector = map[string]string{names.TopologyNode: "n1"} })
	w.waits(t, "third", "node(s) didn't satisfy plugin(s) [CarveVolumes]")
	w.nodes["n1"].Resize("local", 8*gib)
	if node := w.isPlaced(t, "third", "third-data"); node != "n1" {
		t.Errorf("the third Pod is on %s, want n1, which it selects", node)
	}
}
