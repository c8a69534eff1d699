//go:build apiserver

package controller

import (
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (w *world) eventOn(t *testing.T, object metav1.Object, reason string, words ...string) *v1.Event {
	t.Helper()
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	events := must.Get(w.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(object.GetUID()) + ",reason=" + reason}))(t)
	for _, e := range events.Items {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Message, word) }) {
			return &e
		}
	}
	return nil
}

func TestConditionsBecomeEventsOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, nil)
	c, _ := actOn(t, w, Options{Client: asController(t), Namespace: ours})
	node := w.nodes["n1"]
	claim := w.claim(t, storage, "n1", named("data", nil))
	w.waitBound(t, claim)
	spec, _ := scheduledPod(false)
	spec.NodeName, spec.Volumes = "n1", []v1.Volume{byName("data")}
	w.runPodOf(t, "user", spec)
	pod := must.Get(client.CoreV1().Pods(ours).Get(t.Context(), "user", metav1.GetOptions{}))(t)
	object := must.Get(client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	id := w.pv(claim).Spec.CSI.VolumeHandle
	a := newAuditor(c.core, false, audit.DefaultOrphanGrace, func(string) bool { return false })

	ofClass := func(bytes int64, kind string) func() {
		return func() { node.SetClass("local", bytes, of(kind)...) }
	}
	ofVolume := func(kind string) func() { return func() { node.SetHealth(id, of(kind), nil) } }
	// As if the node plugin had found it.
	found := func(kind string) func() {
		return func() {
			must.Get(node.NoteHealth(t.Context(), &lvmdv1.NoteHealthRequest{Id: id, Found: of(kind)}))(t)
		}
	}
	for _, test := range []struct {
		kind   string
		set    func()
		on     []metav1.Object
		reason string
		words  string
	}{
		{conditions.DeletionWaits, ofClass(gib, conditions.DeletionWaits), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: DeletionWaits: why DeletionWaits"},
		{conditions.VolumeGroupReplaced, ofClass(0, conditions.VolumeGroupReplaced), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: VolumeGroupReplaced: why"},
		{conditions.VolumeGroupOutdated, ofClass(0, conditions.VolumeGroupOutdated), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: VolumeGroupOutdated: why"},
		{conditions.VolumeGroupUnfit, ofClass(0, conditions.VolumeGroupUnfit), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: VolumeGroupUnfit: why"},
		{conditions.VolumeGroupMissing, ofClass(0, conditions.VolumeGroupMissing), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: VolumeGroupMissing: why"},
		{conditions.DuplicateDevice, ofClass(0, conditions.DuplicateDevice), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: DuplicateDevice: why"},
		{conditions.VolumeGroupChanged, ofClass(gib, conditions.VolumeGroupChanged), []metav1.Object{object}, "DeviceClassUnhealthy", "device class local: VolumeGroupChanged: why"},
		{conditions.HasDependents, ofVolume(conditions.HasDependents), []metav1.Object{claim, pod}, "VolumeUnhealthy", "on node n1 is not healthy: HasDependents: why"},
		{conditions.UnmountFails, found(conditions.UnmountFails), []metav1.Object{claim, pod}, "VolumeUnhealthy", "on node n1 is not healthy: UnmountFails: why"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			test.set()
			waittest.Until(t, "there are the Events", func() bool {
				a.Pass(t.Context())
				return !slices.ContainsFunc(test.on, func(o metav1.Object) bool { return w.eventOn(t, o, test.reason, test.words) == nil })
			})
			node.SetClass("local", gib)
			node.SetHealth(id, nil, nil)
			waittest.Until(t, "the controller knows that it is over", func() bool {
				view, _ := c.core.Fleet.View("n1")
				on, vol := view.Classes["local"], view.Volumes[id]
				return on.GetTotalBytes() == gib && len(on.GetConditions())+len(vol.GetConditions())+len(vol.GetFound()) == 0
			})
			a.Pass(t.Context())
		})
	}
	waittest.Until(t, "there are the Events that it is over", func() bool {
		return w.eventOn(t, object, "DeviceClassRecovered", "device class local recovered from: VolumeGroupChanged") != nil && w.eventOn(t, pod, "VolumeRecovered", "UnmountFails") != nil
	})
	w.unlabel(t, c, a, object)
	must.Succeed(t, client.CoreV1().Pods(ours).Delete(t.Context(), "user", metav1.DeleteOptions{}))
	w.delete(t, claim)
	w.waitNothingLeft(t, claim)
}

func (w *world) unlabel(t *testing.T, c *Controller, a *audit.Auditor, node *v1.Node) {
	t.Helper()
	patch := `{"metadata":{"labels":{"` + names.TopologyNode + `":null}}}`
	must.Get(w.client.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	waittest.Until(t, "there are the Event and the metric", func() bool {
		a.Pass(t.Context())
		m := &dto.Metric{}
		must.Succeed(t, c.core.metrics.audit.Unlabelled.Write(m))
		return m.GetGauge().GetValue() == 1 &&
			w.eventOn(t, node, "TopologyLabelMissing", "kubectl label --overwrite node n1 "+names.TopologyNode+"=n1") != nil
	})
}
