//go:build apiserver

package controller

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestASidecarProvisionsOnARealAPIServer leaves claims to external-provisioner over the
// CSI socket, on a real API server.
func TestASidecarProvisionsOnARealAPIServer(t *testing.T) {
	w := newWorld(t, connectToAPIServer(t))
	w.namespace = "default"
	sidecarActs(t, w)

	claim := w.claim(t, w.class(t, nil), "n2", nil)
	w.waitBound(t, claim)
	v := w.nodes["n2"].Volumes()[spec.VolumeName(claim)]
	if pv := w.pv(claim); v == nil || pv.Spec.CSI.VolumeHandle != v.GetId() || pv.Spec.CSI.VolumeAttributes[provision.IdentityKey] != "upstream" {
		t.Errorf("PersistentVolume %+v, on the node %v", pv.Spec, v)
	}
	events, err := w.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(claim.UID)})
	if err != nil || slices.ContainsFunc(events.Items, func(e v1.Event) bool { return e.Source.Component == "carve-controller" }) {
		t.Errorf("ours has to do with it: %+v %v", events.Items, err)
	}
	w.delete(t, claim)
	waittest.Until(t, "the volume goes with its claim", func() bool { return w.pv(claim) == nil && len(w.nodes["n2"].Volumes()) == 0 })
}
