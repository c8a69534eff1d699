package cluster

import (
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
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
	waittest.Until(t, "the informer has synced", c.Nodes.HasSynced) // later changes are watched

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
	// next returns the next node that is gone. Events come in order, so the next call detects an
	// extra one.
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

// The cache may be outdated.
func TestLostClaimIsDeletedOnlyIfAPIServerHasItsVolumeSo(t *testing.T) {
	for name, test := range map[string]struct {
		now     func(*v1.PersistentVolume, *v1.PersistentVolumeClaim)
		deleted bool
	}{
		"nothing has changed":             {now: func(*v1.PersistentVolume, *v1.PersistentVolumeClaim) {}, deleted: true},
		"the volume was given to another": {now: func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.Spec.ClaimRef.UID = "2" }},
		"the claim is to be kept":         {now: func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.Annotations = nil }},
		"the volume was made again":       {now: func(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.UID = "another" }},
		"the claim has another volume":    {now: func(_ *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeName = "other" }},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "1"},
				Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pvc-1"}}
			pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{names.ParamOnNodeLoss: names.NodeLossRecreate}},
				Spec: v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{Namespace: "team", Name: "c", UID: "1"}}}
			pvNow, claimNow := pv.DeepCopy(), claim.DeepCopy()
			test.now(pvNow, claimNow)
			client := clientfake.New(pvNow, claimNow)
			all := informers.NewSharedInformerFactory(client, 0)
			c := must.Get(New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
			events := record.NewFakeRecorder(10)
			c.Recorder = events
			c.DeleteLostClaim(t.Context(), pv, claim, "the node is lost")
			left := must.Get(client.CoreV1().PersistentVolumeClaims("team").List(t.Context(), metav1.ListOptions{}))(t)
			if deleted := len(left.Items) == 0; deleted != test.deleted || len(events.Events) > 0 != test.deleted {
				t.Errorf("deleted: %t, with %d Events, want it deleted, with one: %t", deleted, len(events.Events), test.deleted)
			}
		})
	}
}
