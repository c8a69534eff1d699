//go:build apiserver

package controller

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestWhatWasOnALostNodeRunsElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		ephemeral bool
		class     func(*storagev1.StorageClass)
		claim     string
		taint     bool
	}{
		"claims to be made again, Node object deleted": {class: recreate, claim: "data-db-0"},
		"claims to be made again, out of service":      {class: recreate, claim: "data-db-0", taint: true},
		"generic ephemeral volumes, Node deleted":      {ephemeral: true, claim: "db-0-data"},
		"generic ephemeral volumes, out of service":    {ephemeral: true, claim: "db-0-data", taint: true},
		"movable volumes, Node object deleted":         {ephemeral: true, class: movable, claim: "db-0-data"},
		"movable volumes, out of service":              {ephemeral: true, class: movable, claim: "db-0-data", taint: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := connectToAPIServer(t)
			w := newWorld(t, client)
			w.namespace = ours
			install(t, client)
			w.class(t, test.class)
			c, net := actOn(t, w, Options{Client: asController(t), Namespace: ours},
				func(c *Controller) { c.core.Losses.Grace = 500 * time.Millisecond })
			startSet(t, client, test.ephemeral)
			first, before := w.running(t, test.claim, "")
			node := first.Annotations[volume.AnnSelectedNode]

			w.lose(t, c, net, node, test.taint)
			if test.taint && !test.ephemeral {
				// A Pod that returns earlier would use the claim on the node that still
				// exists, and keep it: these tolerate every taint.
				waittest.Until(t, "the claim is being deleted", func() bool {
					claim, err := client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), test.claim, metav1.GetOptions{})
					return err == nil && claim.UID == first.UID && claim.DeletionTimestamp != nil
				})
			}
			// Kubernetes removes Pods from such nodes, but later than this test needs. These
			// tolerate every taint: only the published capacity keeps the next ones away.
			atOnce := int64(0)
			must.Succeed(t, client.CoreV1().Pods(ours).Delete(t.Context(), before.Name, metav1.DeleteOptions{
				GracePeriodSeconds: &atOnce, Preconditions: &metav1.Preconditions{UID: &before.UID}}))
			second, after := w.running(t, test.claim, string(first.UID))
			if after.Spec.NodeName == node || second.Annotations[volume.AnnSelectedNode] == node {
				t.Errorf("Pod on %s, claim on %s: that is the lost node", after.Spec.NodeName, second.Annotations[volume.AnnSelectedNode])
			}
			waittest.Until(t, "nothing is published for the lost node", func() bool {
				published, err := client.StorageV1().CSIStorageCapacities(ours).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return false
				}
				for _, one := range published.Items {
					if capacity.TopologyNode(&one) == node {
						return false
					}
				}
				return true
			})
			w.endSet(t, test.ephemeral, first, second)
		})
	}
}

// The node with the volume is lost before the Pod is bound to it. Kubernetes does not remove
// such a Pod: it gets another claim.
func TestAPodThatWaitsForALostNodeRunsElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		ephemeral bool
		class     func(*storagev1.StorageClass)
		claim     string
		taint     bool
	}{
		"claims to be made again, Node object deleted": {class: recreate, claim: "data-db-0"},
		"generic ephemeral volumes, Node deleted":      {ephemeral: true, class: recreate, claim: "db-0-data"},
		"generic ephemeral volumes, out of service":    {ephemeral: true, claim: "db-0-data", taint: true},
		"generic ephemeral volumes, default class":     {ephemeral: true, claim: "db-0-data"},
	} {
		t.Run(name, func(t *testing.T) {
			client := connectToAPIServer(t)
			w := newWorld(t, client)
			w.namespace = ours
			install(t, client)
			w.class(t, func(class *storagev1.StorageClass) {
				if immediate(class); test.class != nil {
					test.class(class)
				}
			})
			c, net := actOn(t, w, Options{Client: asController(t), Namespace: ours},
				func(c *Controller) { c.core.Losses.Grace = 500 * time.Millisecond })
			startSet(t, client, test.ephemeral, func(pod *v1.PodSpec) {
				pod.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/wait"}}
			})
			var first *v1.PersistentVolumeClaim
			waittest.Until(t, "the claim is bound", func() bool {
				var err error
				first, err = client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), test.claim, metav1.GetOptions{})
				return err == nil && first.Status.Phase == v1.ClaimBound
			})
			before := must.Get(client.CoreV1().Pods(ours).Get(t.Context(), "db-0", metav1.GetOptions{}))(t)
			node, _ := objects.NodeOf(w.pv(first))
			w.lose(t, c, net, node, test.taint)
			if test.taint {
				// The node still exists, and this Pod tolerates the taint.
				waittest.Until(t, "the claim is deleted", func() bool {
					claim, err := client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), test.claim, metav1.GetOptions{})
					return apierrors.IsNotFound(err) || err == nil && claim.UID != first.UID
				})
			}
			must.Get(client.CoreV1().Pods(ours).Patch(t.Context(), "db-0", types.MergePatchType,
				[]byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}))(t)
			second, after := w.running(t, test.claim, string(first.UID))
			if after.UID != before.UID || after.Spec.NodeName == node {
				t.Errorf("Pod %s on %s, it was %s, and the lost node is %s", after.UID, after.Spec.NodeName, before.UID, node)
			}
			w.endSet(t, test.ephemeral, first, second)
		})
	}
}

// taint selects node.kubernetes.io/out-of-service instead of deleting the Node object.
func (w *world) lose(t *testing.T, c *Controller, net *uplinktest.Network, node string, taint bool) {
	t.Helper()
	net.Detach(node)
	waittest.Until(t, "the node is away", func() bool { v, ok := c.core.Fleet.View(node); return !ok || !v.Connected })
	if !taint {
		must.Succeed(t, w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
		return
	}
	waittest.Until(t, "the node is tainted", func() bool {
		lost, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false
		}
		lost.Spec.Taints = append(lost.Spec.Taints, v1.Taint{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute})
		_, err = w.client.CoreV1().Nodes().Update(t.Context(), lost, metav1.UpdateOptions{})
		return err == nil
	})
}

func (w *world) endSet(t *testing.T, ephemeral bool, first, second *v1.PersistentVolumeClaim) {
	t.Helper()
	must.Succeed(t, w.client.AppsV1().StatefulSets(ours).Delete(t.Context(), "db", metav1.DeleteOptions{}))
	waittest.Until(t, "the Pods are gone", func() bool {
		pods, err := w.client.CoreV1().Pods(ours).List(t.Context(), metav1.ListOptions{LabelSelector: "app=db"})
		return err == nil && len(pods.Items) == 0
	})
	if !ephemeral {
		w.delete(t, second)
	}
	waittest.Until(t, "no finalizer keeps what was on the lost node", func() bool { return w.pv(first) == nil })
	w.waitNothingLeft(t, second)
}
