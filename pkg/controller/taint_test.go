package controller

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func withUntainting(c *Controller) { c.o.RemoveStartupTaint = true }

func loggedTo(log *logtest.Recorder) harnessOption {
	return func(c *Controller) { c.core.Log = log.Logger() }
}

// newNode adds a tainted Node without the label that the kubelet sets when the node plugin
// registers.
func (h *harness) newNode(name string) {
	h.t.Helper()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-node"}, Spec: v1.NodeSpec{Taints: []v1.Taint{
		{Key: "example.com/other", Value: "x", Effect: v1.TaintEffectNoSchedule},
		{Key: names.TaintAgentNotReady, Effect: v1.TaintEffectNoExecute},
		{Key: names.TaintAgentNotReady, Value: "true", Effect: v1.TaintEffectNoSchedule},
		{Key: names.TaintAutoscaler, Value: "true", Effect: v1.TaintEffectNoSchedule},
		{Key: names.TaintReadiness, Effect: v1.TaintEffectNoExecute},
	}}}
	must.Get(h.client.CoreV1().Nodes().Create(h.t.Context(), node, metav1.CreateOptions{}))(h.t)
}

// registered acts as the kubelet does.
func (h *harness) registered(name string) {
	h.t.Helper()
	node := must.Get(h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{}))(h.t)
	node = node.DeepCopy()
	node.Labels = map[string]string{names.TopologyNode: name}
	must.Get(h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}))(h.t)
}

func (h *harness) taints(name string) []string {
	node, err := h.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	var keys []string
	for _, t := range node.Spec.Taints {
		keys = append(keys, t.Key)
	}
	return keys
}

func (h *harness) onlyOthersTaintIsLeft(name string) func() bool {
	return func() bool { return slices.Equal(h.taints(name), []string{"example.com/other"}) }
}

// The controller logs the reason once.
func (h *harness) staysTainted(log *logtest.Recorder, name, reason string) {
	h.t.Helper()
	left := func(l logtest.Record) bool {
		why, _ := l.Attributes["reason"].(string)
		return l.Message == "start-up taint stays" && l.Attributes["node"] == name && strings.Contains(why, reason)
	}
	waittest.Until(h.t, "the taint was left because "+reason, func() bool { return len(log.Find(left)) > 0 || len(h.taints(name)) != 5 })
	if got := h.taints(name); len(got) != 5 {
		h.t.Fatalf("the taint was removed although %s: %v", reason, got)
	}
}

func TestATaintUnderAKeyOfOnesOwnIsTheStartupTaint(t *testing.T) {
	const own = "example.com/other"
	h := newHarness(t, withUntainting, func(c *Controller) { c.o.StartupTaintKeys = []string{own} })
	h.class("carve", nil)
	h.newNode("n1")
	h.registered("n1")
	h.run()
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(h.t, "the node has no taint", func() bool { return len(h.taints("n1")) == 0 })
}

func TestTheStartupTaintStaysUntilTheNodeIsConnectedRegisteredAndPublished(t *testing.T) {
	var log logtest.Recorder
	h := newHarness(t, withUntainting, loggedTo(&log))
	var published atomic.Bool
	h.react("create", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		if published.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(fmt.Errorf("not now"))
	})
	h.class("carve", nil)
	h.newNode("n1")
	h.run()
	h.staysTainted(&log, "n1", "its agent is not connected")
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	h.staysTainted(&log, "n1", "the node plugin is not registered")
	h.registered("n1")
	h.staysTainted(&log, "n1", "its capacity in StorageClass carve is not published")
	published.Store(true)
	waittest.Until(h.t, "the taint is gone, other taints are not", h.onlyOthersTaintIsLeft("n1"))
	if h.capacity("n1") == nil {
		t.Error("the taint went before the capacity came")
	}
}

func TestTheStartupTaintStaysWhileACapacityObjectOfAnEarlierRunIsThere(t *testing.T) {
	var log logtest.Recorder
	h := newHarness(t, withUntainting, loggedTo(&log))
	h.class("carve", nil)
	h.newNode("n1")
	h.registered("n1")
	old := capacity.Describe(capacity.Key{Node: "n1", Class: "carve"}, spaceOf(5*gib))
	must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").Create(t.Context(), old, metav1.CreateOptions{}))(t)
	var allowed atomic.Bool
	h.react("update", "csistoragecapacities", func(k8stesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(fmt.Errorf("not now"))
	})
	h.run()
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	h.staysTainted(&log, "n1", "its capacity in StorageClass carve is not published")
	allowed.Store(true)
	waittest.Until(h.t, "the taint is gone", h.onlyOthersTaintIsLeft("n1"))
	if !h.capacityIs("n1", gib)() {
		t.Errorf("published %+v", h.capacity("n1"))
	}
}

func TestTheStartupTaintGoesFromANodeThatHasNoDeviceClassToOffer(t *testing.T) {
	h := newHarness(t, withUntainting)
	h.class("carve", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "elsewhere"} })
	h.newNode("n1")
	h.registered("n1")
	h.run()
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(h.t, "the taint is gone", h.onlyOthersTaintIsLeft("n1"))
}

func TestTheStartupTaintIsRemovedAgainWhenTheAPIServerRefusedAndWhenItComesBack(t *testing.T) {
	h := newHarness(t, withUntainting)
	var failures atomic.Int32
	h.react("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if failures.Add(1) <= 2 {
			return true, nil, apierrors.NewForbidden(v1.Resource("nodes"), "n1", fmt.Errorf("no rule"))
		}
		return false, nil, nil
	})
	h.class("carve", nil)
	h.newNode("n1")
	h.registered("n1")
	h.run()
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(h.t, "the taint is gone", h.onlyOthersTaintIsLeft("n1"))
	h.taint("n1", names.TaintAgentNotReady)
	waittest.Until(h.t, "the taint is gone again", h.onlyOthersTaintIsLeft("n1"))
}

func TestWithoutTheFlagNoNodeIsTouched(t *testing.T) {
	h := newHarness(t)
	h.class("carve", nil)
	h.newNode("n1")
	h.registered("n1")
	h.run()
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib))
	if h.leader().untainter != nil {
		t.Error("the taint was not asked to be removed, and what removes it runs")
	}
	h.stop() // returns when all has ended
	if got := h.taints("n1"); len(got) != 5 {
		t.Errorf("the taint was removed: %v", got)
	}
}

func TestTheMetricSaysSinceWhenTheFirstTaintedNodeWaits(t *testing.T) {
	var log logtest.Recorder
	var clock testClock
	clock.stop()
	h := newHarness(t, clock.set, withUntainting, loggedTo(&log))
	begin := float64(h.c.core.Now().UnixMilli()) / 1000
	since := func(want float64) func() bool {
		return func() bool {
			for _, family := range must.Get(h.c.o.Registerer.(*prometheus.Registry).Gather())(t) {
				if family.GetName() == "carve_controller_tainted_since_timestamp_seconds" {
					return math.Abs(family.GetMetric()[0].GetGauge().GetValue()-want) < 0.5
				}
			}
			return false
		}
	}
	h.class("carve", nil)
	for i, name := range []string{"n1", "n2"} {
		h.newNode(name)
		h.registered(name)
		if i == 0 {
			h.run()
		}
		h.staysTainted(&log, name, "its agent is not connected")
		clock.advance(time.Minute)
	}
	waittest.Until(t, "n1 has waited longest", since(begin))
	h.attach(lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n1")
	waittest.Until(t, "now n2 has, which came a minute later", since(begin+60))
	h.attach(lvmdfake.New("n2", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), "n2")
	waittest.Until(t, "none waits", since(0))
}
