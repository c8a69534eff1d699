package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// An empty reason ends the rejections.
func refuseDeletes(node *lvmdfake.Server, reason string) {
	node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		if reason == "" {
			return nil
		}
		return lvmdfake.Error(codes.FailedPrecondition, reason, "the node says no")
	}})
}

func (w *auditing) tried(result string) float64 {
	return testutil.ToFloat64(w.c.core.metrics.audit.Orphans.WithLabelValues(result))
}

func (w *auditing) audited(want string) {
	w.t.Helper()
	const header = "# HELP carve_controller_audited_volumes Volumes on connected nodes, by standing: known, young (below --orphan-grace), foreign (of another cluster, or made by hand), inline, orphan.\n" +
		"# TYPE carve_controller_audited_volumes gauge\n"
	if err := testutil.CollectAndCompare(w.c.core.metrics.audit.Audited, strings.NewReader(header+want)); err != nil {
		w.t.Error(err)
	}
}

func (w *auditing) orphanPass() []string {
	w.t.Helper()
	w.drain()
	w.pass()
	return slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, " Orphan") })
}

func (w *auditing) reported(volumes int) {
	w.t.Helper()
	waittest.Until(w.t, fmt.Sprintf("%d volumes are reported", volumes), func() bool {
		view, _ := w.c.core.Fleet.View("n1")
		return len(view.Volumes) == volumes
	})
}

func TestOrphansAreReportedOnceAndAgainWhenSomethingChanges(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.stray(w.node, "n1", "lost", "cluster")
	id := w.node.Volumes()["pvc-lost"].GetId()
	for _, step := range []struct {
		name string
		does func()
		want []string // parts of the only Event; none for none
	}{
		{"it is found", func() { w.a.RemoveOrphans = false }, []string{"Warning OrphanFound kept", id, "100Mi", "claim default/gone", "--remove-orphans"}},
		{"nothing changed", func() {}, nil},
		{"its node comes back", func() { w.net.Detach("n1"); w.pass(); w.reboot(w.node); w.reported(2) }, nil},
		{"removal is asked for, while it is mounted", func() { w.a.RemoveOrphans = true; refuseDeletes(w.node, names.ReasonVolumeInUse) },
			[]string{"Warning OrphanFound not removed; retrying: ", id, "node n1: the node says no"}},
		{"it is still mounted", func() {}, nil},
		{"LVM fails", func() { refuseDeletes(w.node, names.ReasonCommandFailed) }, []string{"Warning OrphanFound not removed; retrying: ", id, "the log of lvmd there says more"}},
		{"LVM works", func() { refuseDeletes(w.node, "") }, []string{"Normal OrphanRemoved", id, "claim default/gone"}},
		{"it is gone", func() { w.reported(1) }, nil},
	} {
		step.does()
		events := w.orphanPass()
		if len(step.want) == 0 && len(events) != 0 || len(step.want) != 0 && len(events) != 1 {
			t.Fatalf("%s: want one Event with %q, or none without, got %q", step.name, step.want, events)
		}
		for _, part := range step.want {
			if !strings.Contains(events[0], part) {
				t.Errorf("%s: want an Event with %q, got %q", step.name, part, events[0])
			}
		}
	}
	for result, want := range map[string]float64{audit.OrphanRemoved: 1, audit.OrphanInUse: 2, audit.OrphanFailed: 1, audit.OrphanKnown: 0, audit.OrphanUnconfirmed: 0} {
		if got := w.tried(result); got != want {
			t.Errorf("carve_controller_orphans_total{result=%q}: want %v, got %v", result, want, got)
		}
	}
}

func TestEveryVolumeIsCountedByItsKind(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.a.RemoveOrphans = false
	w.stray(w.node, "n1", "lost", "cluster")
	w.stray(w.node, "n1", "another", "cluster")
	w.stray(w.node, "n1", "foreign", "another-cluster")
	w.pass()
	w.audited(`carve_controller_audited_volumes{standing="foreign"} 1
carve_controller_audited_volumes{standing="inline"} 0
carve_controller_audited_volumes{standing="known"} 1
carve_controller_audited_volumes{standing="orphan"} 2
carve_controller_audited_volumes{standing="young"} 0
`)
	w.a.Grace, w.a.RemoveOrphans = audit.DefaultOrphanGrace, true
	w.pass()
	w.audited(`carve_controller_audited_volumes{standing="foreign"} 1
carve_controller_audited_volumes{standing="inline"} 0
carve_controller_audited_volumes{standing="known"} 1
carve_controller_audited_volumes{standing="orphan"} 0
carve_controller_audited_volumes{standing="young"} 2
`)
}

func TestAVolumeWhoseAdoptionIsNotConfirmedIsNoOrphan(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	vol := &lvmdv1.Volume{
		Id: "cvadopted", Name: "pvc-gone", State: lvmdv1.VolumeState_VOLUME_STATE_READY, AdoptedFrom: "0f2bdf1e",
		Owner: &lvmdv1.Owner{ClusterId: w.a.ID, ClaimUid: "gone"}, CreatedAt: timestamppb.New(w.a.Now().Add(-24 * time.Hour)),
	}
	if got := w.a.Classify(vol); got != audit.KindForeign {
		t.Errorf("under way: got %q, want %q", got, audit.KindForeign)
	}
	vol.AdoptedFrom = ""
	if got := w.a.Classify(vol); got == audit.KindForeign {
		t.Errorf("confirmed: got %q", got)
	}
}

// The volume is a day old.
func TestGraceBeginsWhenNoObjectKnowsVolume(t *testing.T) {
	var clock testClock
	clock.stop()
	h := newHarness(t, clock.set)
	a := newAuditor(h.c.core, false, audit.DefaultOrphanGrace, func(string) bool { return false })
	vol := &lvmdv1.Volume{
		Id: "cv1", Name: "pvc-1", State: lvmdv1.VolumeState_VOLUME_STATE_READY,
		Owner: &lvmdv1.Owner{ClusterId: h.c.core.ID, ClaimUid: "1"}, CreatedAt: timestamppb.New(a.Now().Add(-24 * time.Hour)),
	}
	view := &fleet.View{Node: "n1", Connected: true, Epoch: "e", Volumes: map[string]*lvmdv1.Volume{vol.GetId(): vol}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "renamed", UID: "2"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: vol.GetName()}}
	other := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: vol.GetName()}}
	claims, volumes := h.c.core.Claims.GetIndexer(), h.c.core.Volumes.GetIndexer()
	for _, step := range []struct {
		what   string
		does   func() error
		passed time.Duration
		orphan bool
	}{
		{what: "it is seen first"},
		{what: "the grace period is not over", passed: audit.DefaultOrphanGrace - 1},
		{what: "its node is away", does: func() error { view.Connected = false; return nil }},
		{what: "the grace period is over", does: func() error { view.Connected = true; return nil }, passed: 1, orphan: true},
		{what: "a claim names it", does: func() error { return claims.Add(claim) }, passed: audit.DefaultOrphanGrace},
		{what: "the claim is gone", does: func() error { return claims.Delete(claim) }},
		{what: "the grace period is over again", passed: audit.DefaultOrphanGrace, orphan: true},
		{what: "the claim names a PersistentVolume of another volume", does: func() error { return errors.Join(claims.Add(claim), volumes.Add(other)) }, orphan: true},
		{what: "that is gone", does: func() error { return volumes.Delete(other) }},
		{what: "its own claim names it", does: func() error { claim := claim.DeepCopy(); claim.UID = "1"; return claims.Update(claim) }, passed: audit.DefaultOrphanGrace},
	} {
		if step.does != nil {
			must.Succeed(t, step.does())
		}
		clock.advance(step.passed)
		a.PassWith(t.Context(), []*fleet.View{view})
		if got := testutil.ToFloat64(h.c.core.metrics.audit.Audited.WithLabelValues(audit.KindOrphan)); (got == 1) != step.orphan {
			t.Errorf("%s: got %v orphans, want one: %t", step.what, got, step.orphan)
		}
	}
}

func TestOnePassTriesToRemoveABoundedNumberOfOrphans(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.node.Resize("local", 8*gib)
	const extra = audit.OrphansNamed + 1
	for i := range audit.OrphansPerPass + extra {
		w.stray(w.node, "n1", fmt.Sprintf("lost-%d", i), "cluster")
	}
	events := w.orphanPass()
	if got := len(w.node.Volumes()); got != 1+extra {
		t.Errorf("after one pass %d volumes are left, want the known one and %d", got, extra)
	}
	if got := w.tried(audit.OrphanRemoved); got != audit.OrphansPerPass {
		t.Errorf("%v removals were counted, want %d", got, audit.OrphansPerPass)
	}
	for _, want := range []string{
		fmt.Sprintf("and %d more", audit.OrphansPerPass-audit.OrphansNamed), // Normal OrphanRemoved
		fmt.Sprintf("and %d more", extra-audit.OrphansNamed),                // Warning OrphanFound to be removed
	} {
		if !slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, want) }) {
			t.Errorf("want an Event that ends with %q, got %q", want, events)
		}
	}
	if len(events) != 2 {
		t.Errorf("want two Events, got %q", events)
	}
	w.reported(1 + extra)
	w.pass()
	if got := len(w.node.Volumes()); got != 1 {
		t.Errorf("after two passes %d volumes are left, want the known one", got)
	}
}

func TestAnOrphanIsRemovedOnlyIfTheAPIServerKnowsNothingOfIt(t *testing.T) {
	claim := func(uid, volume string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gone", UID: types.UID(uid)},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	adopted := func(handle string) *v1.PersistentVolumeList {
		return &v1.PersistentVolumeList{Items: []v1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: "adopted"},
			Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: handle}}}}}}
	}
	const claims, volumes = "persistentvolumeclaims", "persistentvolumes"
	noAnswer := func(string) (runtime.Object, error) { return nil, errors.New("no answer") }
	for name, test := range map[string]struct {
		asked  string // the object on which API server and caches differ
		answer func(handle string) (runtime.Object, error)
		result string
		says   string
	}{
		"nothing is known": {result: audit.OrphanRemoved},
		"its claim waits for it": {asked: claims, answer: func(string) (runtime.Object, error) { return claim("lost", ""), nil },
			result: audit.OrphanKnown, says: "its claim is being provisioned after all"},
		"its claim has another volume": {asked: claims, answer: func(string) (runtime.Object, error) { return claim("lost", "pvc-another"), nil },
			result: audit.OrphanRemoved},
		"its claim names its volume": {asked: claims, answer: func(string) (runtime.Object, error) { return claim("lost", "pvc-lost"), nil },
			result: audit.OrphanKnown, says: "claim default/gone names its PersistentVolume, which is gone"},
		"another claim names its volume": {asked: claims, answer: func(string) (runtime.Object, error) { return claim("later", "pvc-lost"), nil },
			result: audit.OrphanKnown, says: "claim default/gone names its PersistentVolume, which is gone"},
		"another claim has its claim's name": {asked: claims, answer: func(string) (runtime.Object, error) { return claim("later", ""), nil },
			result: audit.OrphanRemoved},
		"a PersistentVolume has its id": {asked: volumes, answer: func(handle string) (runtime.Object, error) { return adopted(handle), nil },
			result: audit.OrphanKnown, says: "PersistentVolume adopted names it after all"},
		"claims cannot be asked for": {asked: claims, answer: noAnswer,
			result: audit.OrphanUnconfirmed, says: "look for its claim: no answer"},
		"PersistentVolumes cannot be asked for": {asked: volumes, answer: noAnswer,
			result: audit.OrphanUnconfirmed, says: "look for its PersistentVolume: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			var handle atomic.Value // once the caches are filled
			h.react("*", test.asked, func(a k8stesting.Action) (bool, runtime.Object, error) {
				if of, ok := handle.Load().(string); ok && (a.GetVerb() == "get" || a.GetVerb() == "list") {
					obj, err := test.answer(of)
					if one, ok := obj.(*v1.PersistentVolumeClaim); ok && a.GetVerb() == "list" {
						obj = &v1.PersistentVolumeClaimList{Items: []v1.PersistentVolumeClaim{*one}}
					}
					return true, obj, err
				}
				return false, nil, nil
			})
			node := h.node("n1", gib)
			h.run()
			h.stray(node, "n1", "lost", "cluster")
			waittest.Until(h.t, "the caches are filled", h.c.core.Synced)
			handle.Store(node.Volumes()["pvc-lost"].GetId())
			h.audit(true)
			if got := testutil.ToFloat64(h.c.core.metrics.audit.Orphans.WithLabelValues(test.result)); got != 1 {
				t.Errorf("carve_controller_orphans_total{result=%q}: want 1, got %v", test.result, got)
			}
			if removed, want := node.Volumes()["pvc-lost"] == nil, test.result == audit.OrphanRemoved; removed != want {
				t.Errorf("removed: want %t, got %t", want, removed)
			}
			if test.says != "" {
				h.event("Warning OrphanFound not removed", test.says)
			}
		})
	}
}

// With the program's recorder.
func TestEventsOfOrphansAreOnTheirNode(t *testing.T) {
	h := newHarness(t)
	recorder, stop := cluster.NewRecorder(h.client)
	t.Cleanup(stop)
	h.c.core.Recorder = recorder
	node := h.node("n1", gib)
	h.run()
	h.stray(node, "n1", "lost", "cluster")
	h.audit(false)
	waittest.Until(h.t, "the Event is there", func() bool {
		events, err := h.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return e.Reason == cluster.ReasonOrphanFound && e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n1"
		})
	})
}
