//go:build apiserver

package controller

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The node's disks are replaced, restored, and replaced for good. The API server validates
// writes, and its PV controller might undo them.
func TestOtherDisksWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{names.ParamOnNodeLoss: names.NodeLossRecreate}
	})
	c, net := actOn(t, w, Options{Client: asController(t), Namespace: ours})
	claim := w.claim(t, storage, "n1", named("data", nil))
	w.waitBound(t, claim)
	a := newAuditor(c.core, true, audit.DefaultOrphanGrace, func(string) bool { return false })
	a.Grace, a.MissingGrace = 0, 1

	reboot := func(disks *lvmdfake.Server) {
		net.Detach("n1")
		net.Attach(disks)
		waittest.Until(t, "n1 is back with its disks", func() bool {
			view, ok := c.core.Fleet.View("n1")
			return ok && view.Connected && view.Epoch == disks.Epoch()
		})
	}
	reported := func() bool {
		now, pv := w.get(claim), w.pv(claim)
		i := slices.IndexFunc(now.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing })
		return i >= 0 && now.Status.Conditions[i].Status == v1.ConditionTrue && pv.Status.Reason == cluster.ReasonVolumeMissing &&
			pv.Status.Message != "" && pv.Status.Message == now.Status.Conditions[i].Message
	}
	cached := func() bool {
		now, pv := c.core.Claim(string(claim.UID)), w.pv(claim)
		kept, err := c.core.VolumeLister.Get(spec.VolumeName(claim))
		return now != nil && now.ResourceVersion == w.get(claim).ResourceVersion && err == nil && kept.ResourceVersion == pv.ResourceVersion
	}
	other := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	reboot(other)
	a.Pass(t.Context())
	if !reported() {
		t.Fatalf("after other disks: claim %+v, volume %+v", w.get(claim).Status, w.pv(claim).Status)
	}
	waittest.Until(t, "the cache has it", cached)

	w.nodes["n1"].Restart("n1")
	reboot(w.nodes["n1"])
	a.Pass(t.Context())
	// The PV controller may have added a condition that no Pod uses the claim.
	missing := func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing }
	if now := w.get(claim); slices.ContainsFunc(now.Status.Conditions, missing) || now.Status.Phase != v1.ClaimBound || w.pv(claim).Status.Reason != "" {
		t.Fatalf("with its own disks again: claim %+v, volume %+v", now.Status, w.pv(claim).Status)
	}
	waittest.Until(t, "the cache has it", cached)

	other.Restart("n1")
	reboot(other)
	a.Pass(t.Context())
	waittest.Until(t, "the cache has it", cached)
	if !reported() {
		t.Fatal("the second time was not reported")
	}
	a.Pass(t.Context())
	waittest.Until(t, "claim and volume are gone", func() bool { return w.get(claim) == nil && w.pv(claim) == nil })
	for _, reason := range []string{cluster.ReasonVolumeMissing, cluster.ReasonVolumeRecovered, cluster.ReasonNodeLost} {
		waittest.Until(t, "the Event "+reason, func() bool {
			events, err := client.CoreV1().Events(ours).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=data,reason=" + reason})
			return err == nil && len(events.Items) > 0
		})
	}
	if other.Creates() != 0 || len(w.nodes["n1"].Volumes()) != 1 {
		t.Errorf("%d volumes were made on the other disks; on the old ones: %v", other.Creates(), w.nodes["n1"].Volumes())
	}

	w.nodes["n1"].Restart("n1")
	reboot(w.nodes["n1"])
	waittest.Until(t, "the forgotten volume is removed", func() bool {
		a.Pass(t.Context())
		return len(w.nodes["n1"].Volumes()) == 0
	})
	waittest.Until(t, "the node's Event says so", func() bool {
		events, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=n1,reason=" + cluster.ReasonOrphanRemoved})
		return err == nil && len(events.Items) > 0
	})
}
