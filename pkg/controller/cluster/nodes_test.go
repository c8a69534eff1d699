package cluster

import (
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestANodeIsGoneOnceItIsDeletedOrOutOfService(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	gone := make(chan string, 10)
	stop := must.Get(Watch(c.OnGone(func(node string) { gone <- node })))(t)
	defer stop()
	all.Start(t.Context().Done())
	t.Cleanup(all.Shutdown)
	waittest.Until(t, "the informer has synced", c.Nodes.HasSynced) // what is made from now on is watched

	nodes := client.CoreV1().Nodes()
	create := func(name string) {
		t.Helper()
		must.Get(nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	}
	update := func(name string, unschedulable bool, taints ...string) {
		t.Helper()
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{Unschedulable: unschedulable}}
		for _, key := range taints {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
		}
		must.Get(nodes.Update(t.Context(), node, metav1.UpdateOptions{}))(t)
	}
	// next is the next node that is gone: events come in order, so that one too many is seen.
	next := func(what, want string) {
		t.Helper()
		waittest.Until(t, what, func() bool { return len(gone) > 0 })
		if got := <-gone; got != want {
			t.Fatalf("%s: node %s is gone, want %s", what, got, want)
		}
	}
	create("out-of-service")
	create("deleted")
	waittest.Until(t, "both are seen", func() bool { return len(List(c.Nodes)) == 2 })
	update("out-of-service", false, v1.TaintNodeNotReady, v1.TaintNodeUnreachable)
	update("out-of-service", false, v1.TaintNodeUnreachable, v1.TaintNodeOutOfService)
	update("out-of-service", true, v1.TaintNodeOutOfService)
	must.Succeed(t, nodes.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	next("one that has the taint", "out-of-service")
	next("one that is deleted", "deleted")
	update("out-of-service", true)
	update("out-of-service", true, v1.TaintNodeOutOfService)
	next("one that has the taint again", "out-of-service")
}
