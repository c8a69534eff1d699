package audit

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// unlabelledPasses delays the Event: the kubelet sets the label once the node plugin has
// registered.
const unlabelledPasses = 2

type unlabelled struct {
	passes int    // consecutive
	has    string // the label's value, or empty
}

// reportUnlabelled writes Events on nodes whose topology label is missing or has another
// node's name. A missing label counts on connected nodes only; nodes that are away keep their
// state. A wrong one counts on every node, as the scheduler acts on it even without the agent.
// The controller cannot repair the label: it may not change nodes, and a kubelet that sets it
// unregisters the plugin first.
func (a *Auditor) reportUnlabelled(now *present) {
	nodes, err := a.NodeLister.List(labels.Everything())
	if err != nil {
		return // cannot happen: listers read a cache
	}
	slices.SortFunc(nodes, func(x, y *v1.Node) int { return strings.Compare(x.Name, y.Name) })
	found, count := map[string]unlabelled{}, 0
	for _, object := range nodes {
		node, has := object.Name, object.Labels[names.TopologyNode]
		before := a.unlabelled[node]
		switch {
		case has == node:
			continue
		case has == "" && now.nodes[node] == nil:
			if now.away[node] && before.passes > 0 {
				found[node] = before
			}
			continue
		}
		found[node] = unlabelled{passes: before.passes + 1, has: has}
		if found[node].passes < unlabelledPasses {
			continue
		}
		count++
		if before.passes < unlabelledPasses || before.has != has {
			a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonLabelMissing, sayUnlabelled(node, has))
		}
	}
	a.unlabelled = found
	a.Metrics.Unlabelled.Set(float64(count))
}

// sayUnlabelled advises against a restart of the agent while the label is wrong: the kubelet
// rejects a plugin whose topology contradicts the node's labels.
func sayUnlabelled(node, has string) string {
	label := names.TopologyNode + "=" + node
	correct := "kubectl label --overwrite node " + node + " " + label
	if has == "" {
		return "the node does not have the label " + label + ", so that no Pod with a volume is scheduled to it; set it: " + correct +
			", or restart its Pod of the DaemonSet carve-node, whose kubelet then sets it"
	}
	return "the node has the label " + names.TopologyNode + "=" + has + " instead of " + label + ", so that Pods with volumes on node " + has +
		" are scheduled to it, their Secrets with them, and none with volumes that it has itself; find out who set it, and correct it: " + correct +
		"; do not restart its agent before that, as the kubelet refuses the node plugin meanwhile"
}
