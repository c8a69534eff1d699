//go:build apiserver

package controller

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The Cluster Autoscaler asks whether Pods would fit on nodes that do not exist: with the
// labels of a full node of its group, or of a group without nodes.
func TestTheSchedulerPlacesPodsOnTemplatesOfTheAutoscaler(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	for _, node := range []string{"n1", "n2"} {
		must.Succeed(t, patchNode(client, node, `{"metadata":{"labels":{"`+kindLabel+`":"Standard_L8s_v3","`+v1.LabelHostname+`":"`+node+`"}}}`))
	}
	for name, labels := range map[string]map[string]string{
		// A copy of n1: n1's object counts for the template, too.
		"template-node-for-full":  {names.TopologyNode: "n1", kindLabel: "Standard_L8s_v3"},
		"template-node-for-zero":  {kindLabel: "never-seen"},
		"template-node-for-other": {kindLabel: "without-disks"},
	} {
		labels[v1.LabelHostname], labels[names.LabelTemplateNode] = name, "true"
		// The autoscaler keeps its templates in memory; the policy for nodes rejects this
		// one's label.
		waittest.Succeeds(t, "no policy of a test before is in force", func() error {
			_, err := client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: forPods()}, metav1.CreateOptions{})
			return err
		})
		t.Cleanup(func() { _ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	install(t, client)
	w.class(t, func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{names.AnnotationTemplateCapacity: "never-seen=700Mi"}
	})
	pod := func(name, node, size string) {
		spec, claim := scheduledPod(true)
		claim.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
		spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec = claim
		spec.NodeSelector = map[string]string{v1.LabelHostname: node}
		spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists}} // no kubelet runs
		waittest.Until(t, "the Pod is taken", func() bool {                                                 // once the namespace has its service account
			_, err := client.CoreV1().Pods(ours).Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
			return err == nil
		})
		t.Cleanup(func() {
			_ = client.CoreV1().Pods(ours).Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	placed := func(name, node string) func() bool {
		return func() bool {
			claim, err := client.CoreV1().PersistentVolumeClaims(ours).Get(context.Background(), name+"-data", metav1.GetOptions{})
			return err == nil && claim.Annotations[volume.AnnSelectedNode] == node
		}
	}
	refused := func(name string) func() bool {
		return func() bool {
			p, err := client.CoreV1().Pods(ours).Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				return false
			}
			for _, c := range p.Status.Conditions {
				if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && strings.Contains(c.Message, "did not have enough free storage") {
					return true
				}
			}
			return false
		}
	}
	options := Options{Client: asController(t), Namespace: ours}
	_, _, stop := startOn(t, w, options)
	published := func(key capacity.Key, size int64) func() bool {
		return func() bool {
			c, err := client.StorageV1().CSIStorageCapacities(ours).Get(context.Background(), key.ObjectName(), metav1.GetOptions{})
			return err == nil && c.Capacity.Value() == size
		}
	}
	waittest.Until(t, "n1 is published", published(capacity.Key{Node: "n1", Class: "scenario"}, gib))
	stop()

	// Without the feature under test, no template has space.
	pod("before", "template-node-for-zero", "600Mi")
	waittest.Until(t, "the scheduler finds no space on the template", refused("before"))

	options.TemplateLabel = kindLabel
	_, _, stop = startOn(t, w, options)
	waittest.Until(t, "an empty node is published for its kind", published(capacity.Key{Template: "Standard_L8s_v3", Class: "scenario"}, gib))
	for _, node := range w.nodes {
		node.Put(&lvmdv1.Volume{Id: "by-hand-" + node.Node(), Name: "by-hand-" + node.Node(), DeviceClass: "local"})
		node.Resize("local", 256*mib)
	}
	waittest.Until(t, "the nodes are nearly full", func() bool {
		return published(capacity.Key{Node: "n1", Class: "scenario"}, 256*mib)() && published(capacity.Key{Node: "n2", Class: "scenario"}, 256*mib)()
	})
	// The autoscaler only asks. With a controller running, the scheduler would choose another
	// node than a template, on which no volume can be created.
	stop()
	pod("full", "template-node-for-full", "600Mi")
	pod("too-large", "template-node-for-full", "2Gi")
	pod("zero", "template-node-for-zero", "600Mi")
	pod("zero-too-large", "template-node-for-zero", "800Mi")
	pod("other", "template-node-for-other", "600Mi")
	pod("real", "n1", "600Mi")
	waittest.Until(t, "a Pod that no node has space for fits on a template of the full nodes' kind", placed("full", "template-node-for-full"))
	waittest.Until(t, "one fits on a template of a kind that has no nodes", placed("zero", "template-node-for-zero"))
	waittest.Until(t, "the Pod from before fits there, too", placed("before", "template-node-for-zero"))
	for _, name := range []string{"too-large", "zero-too-large", "other", "real"} {
		waittest.Until(t, "the Pod "+name+" fits nowhere", refused(name))
		if claim := must.Get(client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), name+"-data", metav1.GetOptions{}))(t); claim.Annotations[volume.AnnSelectedNode] != "" {
			t.Errorf("the Pod %s: want no node, got %s", name, claim.Annotations[volume.AnnSelectedNode])
		}
	}
}
