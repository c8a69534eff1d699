package controller

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func without(parts ...string) harnessOption {
	return func(c *Controller) { c.o.Disable, c.o.CSISocket = parts, "unused" }
}

func withTaintKey(keys ...string) func(*Options) {
	return func(o *Options) { o.RemoveStartupTaint, o.StartupTaintKeys = true, keys }
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"one that there is not": {func(o *Options) { o.Disable = []string{"attaching"} }, `"attaching" is not allowed, allowed: provisioning, capacity, resizing, snapshotting`},
		"without a socket":      {func(o *Options) { o.CSISocket = "" }, "--csi-socket"},
		"capacity, for which the start-up taint waits": {func(o *Options) {
			o.Disable, o.RemoveStartupTaint = []string{PartCapacity}, true
		}, "--remove-startup-taint"},
		"a key of a taint that nothing removes": {func(o *Options) { o.StartupTaintKeys = []string{"example.com/a"} }, "without --remove-startup-taint"},
		"a taint's key without a domain":        {withTaintKey("storage"), `--startup-taint-key: "storage" is no key of a taint with a domain`},
		"a taint's key that is none":            {withTaintKey("example.com/a b"), `--startup-taint-key: "example.com/a b" is no key`},
		"a taint's key of Kubernetes' own":      {withTaintKey("node.kubernetes.io/not-ready"), `"node.kubernetes.io/not-ready" is Kubernetes' own`},
		"a taint's keys of autoscalers":         {withTaintKey("readiness.k8s.io/storage", "startup-taint.cluster-autoscaler.kubernetes.io/storage"), ""},
		"all of them":                           {func(o *Options) { o.Disable = Parts() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Client: clientfake.New(), Namespace: "carve-system",
				Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), CSISocket: "/run/csi.sock", Disable: []string{PartProvisioning}}
			test.change(&o)
			_, err := New(o)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
		})
	}
}

func TestWithoutProvisioningClaimsAndVolumesAreLeftToASidecar(t *testing.T) {
	h := newHarness(t, without(PartProvisioning))
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	claim := h.claim("c", "n1", nil)
	waittest.Until(h.t, "capacity is published all the same", h.capacityIs("n1", gib))

	// Released, as by the PV controller.
	h.stray(node, "n1", "made-by-a-sidecar", "")
	pv := provision.NewPersistentVolume(claim, mustClass(t, h), "n1", node.Volumes()["pvc-made-by-a-sidecar"], "x")
	pv.Status.Phase, pv.Spec.ClaimRef.UID = v1.VolumeReleased, "of a claim that is gone"
	must.Get(h.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
	h.net.Detach("n1")
	h.attach(node, "n1") // what there is not disturbs nothing
	// What it would have done it would have done by now: this comes after it.
	h.node("n2", gib)
	waittest.Until(h.t, "capacity of another node is published", h.capacityIs("n2", gib))
	if h.volumes() != 1 || len(node.Volumes()) != 1 || h.getClaim("c").Spec.VolumeName != "" {
		t.Errorf("%d volumes, on the node %v, claim %+v", h.volumes(), node.Volumes(), h.getClaim("c"))
	}
}

func TestWithoutCapacityWhatWasPublishedIsTakenBack(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(h.t, "it is published", h.capacityIs("n1", gib))
	h.stop()

	next := newHarnessOn(t, h.client, without(PartCapacity))
	next.run()
	waittest.Until(next.t, "it is taken back", func() bool { return next.capacity("n1") == nil })
	next.node("n2", gib)
	next.boundVolume("c", "n2")
	if next.capacity("n2") != nil {
		t.Error("capacity was published")
	}
}

func TestWithoutResizingNothingIsGrown(t *testing.T) {
	for name, parts := range map[string][]string{"all parts": nil, "without": {PartResizing}} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, without(parts...))
			node := h.node("n1", gib)
			h.class("carve", expandable)
			h.run()
			h.boundVolume("c", "n1")
			h.grow("c", "200Mi")
			grown := func() bool { return node.Volumes()["pvc-uid-c"].GetSizeBytes() == 200*mib }
			if !slices.Contains(parts, PartResizing) {
				waittest.Until(h.t, "it grows", grown)
				return
			}
			h.claim("c2", "n1", nil)
			waittest.Until(h.t, "another claim is bound", h.bound("c2"))
			if grown() {
				t.Error("it was grown")
			}
		})
	}
}
