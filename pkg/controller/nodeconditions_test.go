package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// nodeConditions returns TYPE=STATUS/REASON of all, and the condition of class local.
func (h *harness) nodeConditions(name string) (all []string, local v1.NodeCondition) {
	h.t.Helper()
	for _, c := range must.Get(h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{}))(h.t).Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		if c.Type == "carve.csi.local/local" {
			local = c
		}
	}
	slices.Sort(all)
	return all, local
}

func (h *harness) reportLocal(node *lvmdfake.Server, bytes int64, conditions ...*lvmdv1.Condition) {
	h.t.Helper()
	(&auditing{harness: h, node: node}).reportClass(bytes, conditions)
}

func TestADeviceClassIsAConditionOfItsNode(t *testing.T) {
	h := newHarness(t, grace(50*time.Millisecond), func(c *Controller) { c.o.NodeConditions, c.core.conditionPause = true, time.Millisecond })
	node := h.node("n1", gib)
	h.node("n2", 0)
	h.changeNode("n1", func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}
	})
	h.run()
	wait := func(what string, ours ...string) {
		t.Helper()
		var want []string
		for _, one := range ours {
			want = append(want, "carve.csi.local/"+one)
		}
		want = append(want, "Ready=True/KubeletReady")
		slices.Sort(want)
		waittest.Until(t, what+": "+strings.Join(want, " "), func() bool { got, _ := h.nodeConditions("n1"); return slices.Equal(got, want) })
	}
	wait("it serves", "local=True/Serving")
	h.reportLocal(node, 0, append(of(conditions.PoolFailed, conditions.DiskErrors), &lvmdv1.Condition{Type: conditions.NotResponding, Message: strings.Repeat("x", 1000)})...)
	wait("nothing answers", "local=False/NotResponding")
	if _, c := h.nodeConditions("n1"); !strings.HasPrefix(c.Message, "xxx") || len(c.Message) > 520 || c.LastHeartbeatTime != c.LastTransitionTime {
		t.Errorf("the condition is %+v", c)
	}
	h.reportLocal(node, gib, of(conditions.NotResponding)...)
	wait("another group has space", "local=True/Serving")
	h.cutOff("n1")
	wait("it is cut off", "local=Unknown/NodeAway")
	node.SetClass("local", 0, of(conditions.DiskErrors)...)
	h.attach(node, "n1")
	wait("it is back, and full", "local=True/Serving")
	local := lvmdfake.Class{Name: "local", Default: true, Bytes: gib}
	node.SetClasses(local, lvmdfake.Class{Name: "fast", Bytes: gib}, lvmdfake.Class{Name: "no+name", Bytes: gib})
	wait("another class", "local=True/Serving", "fast=True/Serving")
	node.SetClasses(local)
	wait("it is gone", "local=True/Serving")
	if got, _ := h.nodeConditions("n2"); len(got) > 0 {
		t.Errorf("a node without an agent has %q", got)
	}
}

func TestANodeIsWrittenOnlyWhenAConditionChanges(t *testing.T) {
	var passed atomic.Int64
	h := newHarness(t, grace(50*time.Millisecond), func(c *Controller) {
		c.core.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	node := h.node("n1", gib)
	long := metav1.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	h.changeNode("n1", func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: "carve.csi.local/local", Status: v1.ConditionTrue, Reason: "Serving", LastTransitionTime: long, Message: "of a version before"}}
	})
	var patches atomic.Int32
	h.react("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		patches.Add(1)
		return false, nil, nil
	})
	h.run()
	h.leader()
	available := h.c.core.available
	leader := func() *audit.NodeConditions { return audit.NewNodeConditions(h.c.core.Cluster, available, 0) }
	step := func(what string, by *audit.NodeConditions, want int32, status v1.ConditionStatus, keepsTime bool) {
		t.Helper()
		_, before := h.nodeConditions("n1")
		for range 3 {
			passed.Add(int64(time.Minute))
			if again := by.Sync(t.Context(), "n1"); again > 0 {
				t.Errorf("%s: to be looked at again in %v", what, again)
			}
		}
		_, now := h.nodeConditions("n1")
		if patches.Load() != want || now.Status != status || now.LastTransitionTime.Equal(&before.LastTransitionTime) != keepsTime {
			t.Errorf("%s: after %d writes %+v, want %d, %s, the time kept: %t", what, patches.Load(), now, want, status, keepsTime)
		}
	}
	first := leader()
	step("a leader finds the condition of another version", first, 1, v1.ConditionTrue, true)
	if _, now := h.nodeConditions("n1"); now.Message == "of a version before" || !now.LastTransitionTime.Equal(&long) {
		t.Errorf("the condition is %+v", now)
	}
	h.reportLocal(node, 2*gib)
	step("there is more space", first, 1, v1.ConditionTrue, true)
	h.reportLocal(node, 0, of(conditions.NotResponding)...)
	step("nothing answers", first, 2, v1.ConditionFalse, false)
	h.reportLocal(node, gib)
	passed.Add(int64(time.Minute))
	first.Sync(t.Context(), "n1")
	h.reportLocal(node, 0, of(conditions.NotResponding)...)
	if again := first.Sync(t.Context(), "n1"); again <= 0 || again > 10*time.Second || patches.Load() != 3 {
		t.Errorf("at once after a write: again in %v, %d writes", again, patches.Load())
	}
	step("when the pause is over", first, 4, v1.ConditionFalse, false)
	second := leader()
	step("a new leader", second, 4, v1.ConditionFalse, true)
	h.reportLocal(node, 0, of(conditions.DuplicateDevice)...)
	step("another cause", second, 5, v1.ConditionFalse, true)
	h.cutOff("n1")
	waittest.Until(t, "n1 is held back", func() bool { return available.NoteAway("n1") })
	step("it is cut off", second, 6, v1.ConditionUnknown, false)
	step("a new leader does not know it", leader(), 6, v1.ConditionUnknown, true)
	h.changeNode("n1", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionTrue })
	available = h.c.newAvailability()
	step("a new leader, within the grace", leader(), 6, v1.ConditionTrue, true)
}

func TestAWriteOfConditionsThatIsRefusedIsTriedLessAndLessOften(t *testing.T) {
	var log logtest.Recorder
	h := newHarness(t, loggedTo(&log))
	h.node("n1", gib)
	h.node("n2", gib)
	failures := 4
	h.react("patch", "nodes", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if action.(k8stesting.PatchAction).GetName() == "n2" {
			return false, nil, nil
		}
		failures--
		return failures >= 0, nil, apierrors.NewForbidden(v1.Resource("nodes/status"), "n1", fmt.Errorf("no rule"))
	})
	h.run()
	h.leader()
	n := audit.NewNodeConditions(h.c.core.Cluster, h.c.core.available, 1)
	var pauses []time.Duration
	for range 5 {
		pauses = append(pauses, n.Sync(t.Context(), "n1"))
		n.Sync(t.Context(), "n2")
	}
	if want := []time.Duration{1, 2, 4, 8, 0}; !slices.Equal(pauses, want) {
		t.Errorf("pauses of %v, want %v", pauses, want)
	}
	warned := log.Find(func(l logtest.Record) bool {
		return l.Attributes["node"] == "n1" && strings.Contains(fmt.Sprint(l.Attributes["error"]), "see deploy/components/node-conditions")
	})
	if len(warned) != 4 {
		t.Errorf("%d warnings, want one for each failure", len(warned))
	}
	for _, node := range []string{"n1", "n2"} {
		if got, _ := h.nodeConditions(node); !slices.Equal(got, []string{"carve.csi.local/local=True/Serving"}) {
			t.Errorf("%s has %q", node, got)
		}
	}
}
