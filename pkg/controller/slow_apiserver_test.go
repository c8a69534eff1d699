//go:build apiserver

package controller

import (
	"context"
	"testing"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// As many nodes as the library has workers hold the calls for one namespace.
func TestSnapshotsOfOneNamespaceThatHangHoldUpNoOthersOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	const tenant = "slow-tenant"
	must.Get(client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { _ = client.CoreV1().Namespaces().Delete(context.Background(), tenant, metav1.DeleteOptions{}) })
	taking, deleting := &heldCalls{release: make(chan struct{})}, &heldCalls{release: make(chan struct{})}
	slow := []string{"slow-1", "slow-2", "slow-3", "slow-4"} // few
	class := lvmdfake.Class{Name: "thin", Default: true, Bytes: gib, Thin: true}
	for _, name := range slow {
		w.node(t, name, class)
		w.nodes[name].SetHooks(lvmdfake.Hooks{BeforeSnapshot: hold[*lvmdv1.CreateSnapshotRequest](taking),
			BeforeDeleteSnapshot: hold[*lvmdv1.DeleteSnapshotRequest](deleting)})
	}
	w.nodes["n1"] = lvmdfake.New("n1", class)
	config := installSnapshots(t, client)
	snapshots := snapshotclient.NewForConfigOrDie(config)
	storage := w.class(t, nil)
	actOn(t, w, Options{Client: client, Snapshots: snapshots, Namespace: ours}, withFewWorkers)

	claims := []*v1.PersistentVolumeClaim{w.claim(t, storage, "n1", named("quick", nil))}
	w.namespace = tenant
	for _, name := range slow {
		claims = append(claims, w.claim(t, storage, name, named(name, nil)))
	}
	for _, claim := range claims {
		w.waitBound(t, claim)
	}
	slowly, quickly := snapshots.SnapshotV1().VolumeSnapshots(tenant), snapshots.SnapshotV1().VolumeSnapshots(ours)
	for _, name := range slow {
		askForSnapshot(t, slowly, name, name)
	}
	waittest.Until(t, "a snapshot hangs", func() bool { return taking.count.Load() > 0 })
	askForSnapshot(t, quickly, "quick", "quick")
	waitSnapshot(t, quickly, "quick")
	close(taking.release)
	for _, name := range slow {
		waitSnapshot(t, slowly, name)
	}

	for _, name := range slow {
		must.Succeed(t, slowly.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	waittest.Until(t, "a deletion hangs", func() bool { return deleting.count.Load() > 0 })
	must.Succeed(t, quickly.Delete(t.Context(), "quick", metav1.DeleteOptions{}))
	waittest.Until(t, "the other namespace's snapshot is deleted", func() bool { return len(w.nodes["n1"].Snapshots()) == 0 })
	close(deleting.release)
	for _, name := range slow {
		waittest.Until(t, "what was refused is tried again", func() bool {
			_, err := slowly.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err) && len(w.nodes[name].Snapshots()) == 0
		})
	}
	for _, claim := range claims {
		w.delete(t, claim)
		w.waitNothingLeft(t, claim)
	}
}
