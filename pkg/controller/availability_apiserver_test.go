//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestTheSchedulerAvoidsANodeThatCannotProvision(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.nodes["n1"].Resize("local", 8*gib)
	failCreates(w.nodes["n1"], codes.Internal, names.ReasonCommandFailed)
	class := w.class(t, nil)
	_, net := actOn(t, w, Options{Client: asController(t), Namespace: ours}, backoff(time.Hour), grace(100*time.Millisecond))
	published := func(node string, bytes int64) func() bool {
		name := capacity.Key{Node: node, Class: class}.ObjectName()
		return func() bool {
			object, err := client.StorageV1().CSIStorageCapacities(ours).Get(context.Background(), name, metav1.GetOptions{})
			return err == nil && object.Capacity.Value() == bytes && object.MaximumVolumeSize.Value() == bytes
		}
	}
	waittest.Until(t, "both nodes are published", func() bool { return published("n1", 8*gib)() && published("n2", gib)() })
	placed := watchPlacements(t, client)
	spec, _ := scheduledPod(true)
	spec.NodeSelector = map[string]string{names.TopologyNode: "n1"}
	spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = &class
	pods := client.CoreV1().Pods(ours)
	waittest.Until(t, "the Pod is taken", func() bool { // once the namespace has its service account
		_, err := pods.Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "only-there"}, Spec: spec}, metav1.CreateOptions{})
		return err == nil
	})
	t.Cleanup(func() { _ = pods.Delete(context.Background(), "only-there", metav1.DeleteOptions{}) })
	waittest.Until(t, "n1 is held back", published("n1", 0))
	// Each wakes the scheduler, which retries the first one.
	for i := range 3 {
		if node := w.placedBy(t, v1.DefaultSchedulerName, fmt.Sprintf("any-%d", i), class); node != "n2" {
			t.Errorf("the scheduler brought a Pod to %s", node)
		}
	}
	if n := placed.most("n1"); n != 1 {
		t.Errorf("the scheduler chose n1 %d times for one claim", n)
	}
	net.Detach("n2")
	waittest.Until(t, "n2 is held back", published("n2", 0))
	net.Attach(w.nodes["n2"])
	waittest.Until(t, "n2 is published again", published("n2", gib-3*100*mib))
}
