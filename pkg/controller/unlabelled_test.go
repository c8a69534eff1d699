package controller

import (
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The label is removed, set to another node's name, and corrected.
func TestANodeWithoutItsTopologyLabelIsNamedUntilItHasIt(t *testing.T) {
	w := newAuditing(t, "")
	label := func(value string) {
		t.Helper()
		node := must.Get(w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t).DeepCopy()
		delete(node.Labels, names.TopologyNode)
		if value != "" {
			node.Labels[names.TopologyNode] = value
		}
		must.Get(w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))(t)
		waittest.Until(t, "the controller knows", func() bool {
			node, err := w.c.core.NodeLister.Get("n1")
			return err == nil && node.Labels[names.TopologyNode] == value
		})
	}
	pass := func() []string {
		t.Helper()
		w.drain()
		w.pass()
		return slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, "TopologyLabel") })
	}
	counted := func(want float64) {
		t.Helper()
		m := &dto.Metric{}
		must.Succeed(t, w.c.core.metrics.audit.Unlabelled.Write(m))
		if got := m.GetGauge().GetValue(); got != want {
			t.Errorf("%v nodes are counted, want %v", got, want)
		}
	}
	wantEvents(t, "a node with its label", pass(), 0)
	label("")
	wantEvents(t, "what may be a moment", pass(), 0)
	wantEvents(t, "no label", pass(), 1, v1.EventTypeWarning+" TopologyLabelMissing", "kubectl label --overwrite node n1 "+names.TopologyNode+"=n1")
	counted(1)
	wantEvents(t, "still none", pass(), 0)
	label("n2")
	wantEvents(t, "another node's", pass(), 1, v1.EventTypeWarning+" TopologyLabelMissing", "Pods with volumes on node n2 are scheduled to it, their Secrets with them")
	wantEvents(t, "still another node's", pass(), 0)
	counted(1)
	label("n1")
	wantEvents(t, "its own", pass(), 0)
	counted(0)
	label("")
	pass()
	label("n1")
	wantEvents(t, "a moment", pass(), 0)
	// The kubelet rejects a plugin whose topology contradicts the node's labels: a restart
	// would not help.
	label("n2")
	pass()
	found := pass()
	wantEvents(t, "another node's from the first", found, 1, "has the label "+names.TopologyNode+"=n2 instead of", "kubectl label --overwrite node n1 "+names.TopologyNode+"=n1")
	if len(found) == 1 && !strings.Contains(found[0], "do not restart") {
		t.Errorf("%q does not say that a restart makes it worse", found[0])
	}
	// The scheduler mistakes a node without an agent for n1, too.
	must.Get(w.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "agentless", Labels: map[string]string{names.TopologyNode: "n1"}}}, metav1.CreateOptions{}))(t)
	waittest.Until(t, "the controller knows the node", func() bool { _, err := w.c.core.NodeLister.Get("agentless"); return err == nil })
	pass()
	wantEvents(t, "another node's, without an agent", pass(), 1, "the node has the label "+names.TopologyNode+"=n1 instead of "+names.TopologyNode+"=agentless")
	counted(2)
}
