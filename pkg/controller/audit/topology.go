package audit

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// unlabelledPasses is how many passes in a row must find a node without its label before an
// Event says so: the kubelet sets it once the node plugin has registered.
const unlabelledPasses = 2

// reportUnlabelled writes Events on connected nodes whose Node object does not have the topology
// label, and when it is back: without it the scheduler finds neither the node's capacity nor the
// volumes there. The label is not set again from here: the controller has no right to change
// nodes, and a kubelet that is to set it takes the plugin off the node first. Nodes that are not
// connected are as they were.
func (a *Auditor) reportUnlabelled(now *present) {
	found, count := map[string]int{}, 0
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		object, err := a.NodeLister.Get(node)
		if err != nil {
			continue // there is no such node to schedule to
		}
		before := a.unlabelled[node]
		if object.Labels[names.TopologyNode] == node {
			if before >= unlabelledPasses {
				a.NodeEvent(node, v1.EventTypeNormal, cluster.ReasonLabelRestored, "the node has the label "+names.TopologyNode+"="+node+" again")
			}
			continue
		}
		if found[node] = before + 1; found[node] < unlabelledPasses {
			continue
		}
		count++
		if found[node] == unlabelledPasses {
			a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonLabelMissing, unlabelled(node, object.Labels[names.TopologyNode]))
		}
	}
	for node, n := range a.unlabelled {
		if now.away[node] {
			found[node] = n
		}
	}
	a.unlabelled = found
	a.Metrics.Unlabelled.Set(float64(count))
}

// unlabelled says what a node without its label lacks and what to do; has is the label's value there,
// if any. A kubelet refuses a plugin whose topology the node's labels contradict: then the agent is
// not to be restarted.
func unlabelled(node, has string) string {
	label := names.TopologyNode + "=" + node
	lack, restart := "does not have the label "+label, ", or restart its Pod of the DaemonSet carve-node, whose kubelet then sets it"
	if has != "" {
		lack, restart = "has the label "+names.TopologyNode+"="+has+" instead of "+label, "; do not restart its agent before that, as the kubelet refuses the node plugin meanwhile"
	}
	return "the node " + lack + ", so that no Pod with a volume is scheduled to it; set it: kubectl label --overwrite node " + node + " " + label + restart
}
