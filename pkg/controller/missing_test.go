package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// auditing has a node n1 that held the volume of claim c.
type auditing struct {
	*harness
	a    *audit.Auditor
	node *lvmdfake.Server // the disks that n1 had at first
}

func newAuditing(t *testing.T, policy string) *auditing {
	t.Helper()
	h := newHarness(t)
	node := h.node("n1", gib)
	if policy == names.NodeLossRecreate {
		h.class("carve", recreate)
	} else {
		h.class("carve", nil)
	}
	h.run()
	h.boundVolume("c", "n1")
	a := newAuditor(h.c.core, true, audit.DefaultOrphanGrace, h.leader().provisioner.Busy)
	a.Grace = 0
	return &auditing{harness: h, a: a, node: node}
}

func (w *auditing) reboot(disks *lvmdfake.Server) {
	w.t.Helper()
	w.net.Detach("n1")
	waittest.Until(w.t, "n1 is off", func() bool { v, _ := w.c.core.Fleet.View("n1"); return !v.Connected })
	w.attach(disks, "n1")
}

func otherDisks() *lvmdfake.Server {
	return lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
}

func (w *auditing) pass() {
	w.t.Helper()
	w.a.Pass(w.t.Context())
	waittest.Until(w.t, "the caches have followed", func() bool {
		for _, obj := range w.c.core.Volumes.GetStore().List() {
			cached := obj.(*v1.PersistentVolume)
			if now := w.pv(cached.Name); now == nil || now.Status.Reason != cached.Status.Reason || now.Status.Message != cached.Status.Message || now.Annotations[names.AnnotationVolumeGroup] != cached.Annotations[names.AnnotationVolumeGroup] {
				return false
			}
		}
		for _, cached := range w.c.core.AllClaims() {
			if w.claimIsGone(cached.Name) || len(w.getClaim(cached.Name).Status.Conditions) != len(cached.Status.Conditions) {
				return false
			}
		}
		return true
	})
}

func (w *auditing) condition() string {
	conditions := w.getClaim("c").Status.Conditions
	i := slices.IndexFunc(conditions, func(c v1.PersistentVolumeClaimCondition) bool { return c.Type == names.ConditionVolumeMissing })
	if i < 0 {
		return ""
	}
	if c := conditions[i]; c.Status != v1.ConditionTrue || c.Reason != cluster.ReasonVolumeMissing || c.LastTransitionTime.IsZero() {
		w.t.Errorf("condition %+v", c)
	}
	return conditions[i].Message
}

func (w *auditing) missing(cause string) float64 {
	return testutil.ToFloat64(w.c.core.metrics.audit.Missing.WithLabelValues(cause))
}

func TestAVolumeThatItsNodeLacksIsReportedByCauseAndKept(t *testing.T) {
	for name, test := range map[string]struct {
		policy, cause string
		lose          func(*auditing)
		says          []string
	}{
		"it was removed by hand": {policy: names.NodeLossRecreate, cause: audit.CauseRemoved, lose: func(w *auditing) {
			w.net.Detach("n1")
			w.node.Restart("n1")
			must.Get(w.node.DeleteVolume(w.t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-uid-c"}))(w.t)
			w.reboot(w.node)
		}, says: []string{"not on node n1", "`lvs --all`", "/etc/lvm/archive", "vgcfgrestore", "Delete the claim only if"}},
		"its volume group is not there": {policy: names.NodeLossRecreate, cause: audit.CauseNoGroup, lose: func(w *auditing) {
			w.reboot(lvmdfake.New("n1"))
		}, says: []string{"volume group local", "disks are back", "Delete the claim only if"}},
		"the node has other disks": {policy: names.NodeLossKeep, cause: audit.CauseReplaced, lose: func(w *auditing) {
			w.reboot(otherDisks())
		}, says: []string{"volume group local is another one", "kept", "pvs -o +vg_name,vg_uuid", "Delete the claim only if"}},
		"its disks are in another node": {policy: names.NodeLossRecreate, cause: audit.CauseMoved, lose: func(w *auditing) {
			w.reboot(otherDisks())
			w.harness.node("n2", 0)
			w.node.Restart("n2")
			w.attach(w.node, "n2")
		}, says: []string{"not on node n1", "but on node n2"}},
		"nothing was noted of its group": {policy: names.NodeLossRecreate, cause: audit.CauseUnknown, lose: func(w *auditing) {
			must.Get(w.client.CoreV1().PersistentVolumes().Patch(w.t.Context(), "pvc-uid-c", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"carve.csi.local/volume-group":null}}}`), metav1.PatchOptions{}))(w.t)
			waittest.Until(w.t, "the note is gone", func() bool {
				pv, err := w.c.core.VolumeLister.Get("pvc-uid-c")
				return err == nil && pv.Annotations[names.AnnotationVolumeGroup] == ""
			})
			w.reboot(otherDisks())
		}, says: []string{"not on node n1", "`lvs --all`", "/etc/lvm/archive", "vgcfgrestore", "Delete the claim only if"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newAuditing(t, test.policy)
			test.lose(w)
			for range 3 {
				w.pass()
			}
			pv := w.pv("pvc-uid-c")
			if pv == nil || w.getClaim("c").Status.Phase != v1.ClaimBound || w.getClaim("c").DeletionTimestamp != nil {
				t.Fatal("the claim was given up")
			}
			said := w.condition()
			for _, part := range test.says {
				if !strings.Contains(said, part) {
					t.Errorf("the claim's condition says %q, want %q", said, part)
				}
			}
			if pv.Status.Reason != cluster.ReasonVolumeMissing || pv.Status.Message != said {
				t.Errorf("the volume's status is %+v, the claim's says %q", pv.Status, said)
			}
			if w.missing(test.cause) != 1 {
				t.Errorf("the metric does not count it as %s", test.cause)
			}
			w.event(append([]string{"Warning VolumeMissing"}, test.says...)...) // on the volume
			w.event(append([]string{"Warning VolumeMissing"}, test.says...)...) // on the claim
			select {
			case e := <-w.events.Events:
				t.Errorf("and again: %s", e)
			default:
			}
		})
	}
}

func TestPodsThatUseAVolumeThatItsNodeLacksAreNotified(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.waitingPod("db-0", nil)
	w.waitingPod("of-another-claim", func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{claimVolume("other")} })
	w.waitingPod("on-another-node", func(p *v1.Pod) { p.Spec.NodeName = "n2" })
	about := func(reason string) []string {
		return slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, reason) })
	}
	w.reboot(otherDisks())
	w.pass()
	wantEvents(t, "on the volume, its claim and the Pod", about(cluster.ReasonVolumeMissing), 3, "another one")
	w.pass()
	wantEvents(t, "once more", about(cluster.ReasonVolumeMissing), 0)
	w.node.Restart("n1")
	w.reboot(w.node)
	w.pass()
	wantEvents(t, "when it is back", about(cluster.ReasonVolumeRecovered), 3, "on node n1 recovered from: VolumeMissing")
}

func TestANodeWithOtherDisksTakesAlongTheClaimsWhoseClassSaysSo(t *testing.T) {
	w := newAuditing(t, names.NodeLossRecreate)
	w.harness.node("n2", gib)
	w.boundVolume("c2", "n2") // recreated elsewhere
	disks := otherDisks()
	w.reboot(disks)
	w.pass()
	w.event("Warning VolumeMissing", "another one", "is to be deleted")
	if w.claimIsGone("c") || w.condition() == "" {
		t.Fatal("the claim was given up at first sight")
	}
	w.a.Pass(t.Context())
	w.event("Warning NodeLost", "other disks", "made again elsewhere")
	waittest.Until(w.t, "claim and volume are gone", func() bool { return w.claimIsGone("c") && w.volumes() == 1 })
	if disks.Creates() != 0 {
		t.Error("the volume was made again by itself")
	}

	w.node.Restart("n1")
	w.reboot(w.node)
	w.pass()
	if v := w.node.Volumes(); len(v) != 0 {
		t.Errorf("the forgotten volume was not removed as an orphan: %v", v)
	}
	if pv := w.pv("pvc-uid-c2"); pv == nil || pv.Status.Reason != "" {
		t.Errorf("the other volume is %+v", pv)
	}
}

func TestANodeWithItsOldDisksServesItsVolumesAgain(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	must.Get(w.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "c", types.MergePatchType, []byte(
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"web","uid":"u","controller":true}]}}`), metav1.PatchOptions{}))(t)
	waittest.Until(w.t, "the claim has an owner", func() bool { return spec.OwnerPod(w.c.core.Claim("uid-c")) != nil })
	w.reboot(otherDisks())
	w.pass()
	if w.condition() == "" {
		t.Fatal("the claim has no condition")
	}
	for _, who := range []string{"volume", "claim", "Pod"} {
		t.Logf("awaiting the Event on the %s", who)
		w.event("Warning VolumeMissing", "another one")
	}
	w.node.Restart("n1")
	w.reboot(w.node)
	w.pass()
	w.event("Normal VolumeRecovered", "on node n1 recovered from: VolumeMissing")
	if pv := w.pv("pvc-uid-c"); w.condition() != "" || pv.Status.Reason != "" || pv.Status.Message != "" || w.missing(audit.CauseReplaced) != 0 {
		t.Errorf("it is still said to be missing: %q, %+v", w.condition(), pv.Status)
	}
	w.pass()
	if len(w.node.Volumes()) != 1 {
		t.Fatal("the volume is gone")
	}
	w.deleteClaim("c")
	waittest.Until(w.t, "the volume goes with its claim", func() bool { return w.volumes() == 0 && len(w.node.Volumes()) == 0 })
}

func TestALostNodeThatReturnsWithOtherDisksIsTreatedByPolicyToo(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.net.Detach("n1")
	w.deleteNode("n1")
	w.event("Warning NodeLost", "n1", "kept")
	w.harness.node("n1", 0)
	w.attach(otherDisks(), "n1")
	w.pass()
	w.event("Warning VolumeMissing", "another one", "kept")
	must.Get(w.client.CoreV1().PersistentVolumes().Patch(t.Context(), "pvc-uid-c", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"carve.csi.local/on-node-loss":"recreate"}}}`), metav1.PatchOptions{}))(t)
	waittest.Until(w.t, "the claim is given up once its volume says so", func() bool { w.a.Pass(t.Context()); return w.claimIsGone("c") })
	waittest.Until(w.t, "the volume is gone", func() bool { return w.volumes() == 0 })
}

func TestTheGroupOfAVolumeIsNotedAndFollowed(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	made := w.node.Volumes()["pvc-uid-c"]
	want := made.GetVgName() + "/" + made.GetVgUuid()
	if got := w.pv("pvc-uid-c").Annotations[names.AnnotationVolumeGroup]; got != want || made.GetVgUuid() == "" {
		t.Errorf("a new volume has the note %q, want %q", got, want)
	}
	for name, note := range map[string]string{"an older volume": "null", "a group that was renamed": `"old/` + made.GetVgUuid() + `"`} {
		must.Get(w.client.CoreV1().PersistentVolumes().Patch(t.Context(), "pvc-uid-c", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"carve.csi.local/volume-group":`+note+`}}}`), metav1.PatchOptions{}))(t)
		waittest.Until(w.t, name+" is noted", func() bool {
			w.a.Pass(t.Context())
			return w.pv("pvc-uid-c").Annotations[names.AnnotationVolumeGroup] == want
		})
	}
	if w.condition() != "" {
		t.Errorf("it is said to be missing: %q", w.condition())
	}
}
