// Package why explains why a Pod with volumes of Carve does not run. It is pure: callers pass
// all facts.
package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
)

// Annotations of claims: the scheduler's choice, and the PV controller's mark of a bound claim.
const (
	selectedNode  = "volume.kubernetes.io/selected-node"
	bindCompleted = "pv.kubernetes.io/bind-completed"
)

// Facts are the state of a Pod and of everything it waits for.
type Facts struct {
	Pod *corev1.Pod
	// PodEvents are the latest Events of the Pod, newest first.
	PodEvents []Event
	Claims    []Claim
	Nodes     []Node
}

// Event is the reason and message of a Kubernetes Event.
type Event struct{ Reason, Message string }

// Claim is one of the Pod's claims. Missing objects are nil.
type Claim struct {
	// Name is set even if the claim does not exist.
	Name   string
	Claim  *corev1.PersistentVolumeClaim
	Class  *storagev1.StorageClass
	Volume *corev1.PersistentVolume
	Events []Event
}

// Node is a node of the cluster with its Carve agent.
type Node struct {
	Name          string
	Ready         bool
	Unschedulable bool
	// AgentReady: the node's Pod of the DaemonSet carve-node is ready.
	AgentReady bool
	// Registered: the kubelet knows the driver.
	Registered bool
	// Largest is the size in bytes of the largest possible new volume by StorageClass; classes
	// that the node does not offer are missing.
	Largest map[string]int64
}

// Reason is one cause that keeps the Pod from running.
type Reason struct {
	// Subject is a kind and a name.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
	// Next is advice, or empty.
	Next string `json:"next,omitempty"`
}

// Explain returns the reasons, most important first, or none if the Pod is ready.
func Explain(f Facts) []Reason {
	pod := f.Pod
	subject := "pod/" + pod.Name
	switch {
	case pod.DeletionTimestamp != nil:
		return []Reason{{subject, "it is being deleted", "wait for its end; a container that does not stop keeps its volume mounted"}}
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return []Reason{{subject, fmt.Sprintf("it has ended (%s)", pod.Status.Phase), "kubectl describe pod " + pod.Name}}
	case ready(pod):
		return nil
	}
	var reasons []Reason
	mine := 0
	for _, claim := range f.Claims {
		if served(claim) {
			mine++
		}
		if reason, ok := claimReason(f, claim); ok {
			reasons = append(reasons, reason)
		}
	}
	if pod.Spec.NodeName == "" {
		return append(reasons, unscheduled(f, mine, len(reasons))...)
	}
	return append(reasons, unstarted(f, mine)...)
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// served reports whether Carve serves or served the claim.
func served(c Claim) bool {
	if c.Volume != nil && c.Volume.Spec.CSI != nil {
		return c.Volume.Spec.CSI.Driver == names.Driver
	}
	return c.Class != nil && c.Class.Provisioner == names.Driver
}

// claimReason returns the problem of a claim itself.
func claimReason(f Facts, c Claim) (Reason, bool) {
	subject := "claim/" + c.Name
	switch {
	case c.Claim == nil && ephemeral(f.Pod, c.Name):
		problem := "it does not exist, and is Kubernetes' to make, of the Pod's ephemeral volume"
		if failed, ok := find(f.PodEvents, "FailedBinding"); ok {
			problem += ": " + failed.Message
		}
		return Reason{subject, problem, "wait some seconds; then kubectl describe pod " + f.Pod.Name + ", and kubectl describe resourcequota. A claim by hand is not this Pod's, and keeps it from starting"}, true
	case c.Claim == nil:
		return Reason{subject, "it does not exist", "was it deleted, or is the name wrong? kubectl get pvc; a volume that it had may be left: see docs/how-to/existing-volumes.md"}, true
	case c.Claim.DeletionTimestamp != nil:
		return Reason{subject, "it is being deleted", "it goes when no Pod uses it; this Pod cannot start with it"}, true
	case c.Claim.Spec.VolumeName == "" && metav1.HasAnnotation(c.Claim.ObjectMeta, bindCompleted):
		return Reason{subject, "it is marked as bound and names no volume, which Kubernetes calls Lost", "kubectl annotate pvc " + c.Name + " " + bindCompleted + "-"}, true
	case c.Claim.Status.Phase == corev1.ClaimLost || c.Claim.Spec.VolumeName != "" && c.Volume == nil:
		return Reason{subject, fmt.Sprintf("its PersistentVolume %s is gone", c.Claim.Spec.VolumeName), "its node may have the volume still: see docs/how-to/existing-volumes.md; delete the claim only if its data is not needed"}, true
	case c.Claim.Spec.VolumeName == "" && c.Class == nil:
		return Reason{subject, fmt.Sprintf("its StorageClass %q does not exist", className(c.Claim)), "kubectl get storageclasses"}, true
	case !served(c):
		return Reason{}, false
	case missing(c.Claim):
		return Reason{subject, "its node does not have the volume: " + condition(c.Claim, names.ConditionVolumeMissing), "docs/explanation/claims.md, Nodes that go and come back"}, true
	case c.Volume != nil:
		return volumeReason(f, subject, c)
	}
	if failed, ok := find(c.Events, "ProvisioningFailed"); ok {
		return Reason{subject, "its volume could not be made: " + failed.Message, "kubectl carve capacity"}, true
	}
	chosen := c.Claim.Annotations[selectedNode]
	if chosen == "" {
		return Reason{}, false // the scheduler must choose first
	}
	if node, ok := f.node(chosen); !ok {
		return Reason{subject, fmt.Sprintf("it is to be made on node %s, which does not exist", chosen), "delete the Pod if it stays so"}, true
	} else if !node.AgentReady {
		return Reason{subject, fmt.Sprintf("it is to be made on node %s, where the node agent is not ready", chosen), "kubectl carve doctor"}, true
	}
	return Reason{subject, "its volume is being made on node " + chosen, "wait some seconds; then look at the logs of carve-controller"}, true
}

// ephemeral reports whether the Pod has an ephemeral volume with that claim.
func ephemeral(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil && pod.Name+"-"+v.Name == claim })
}

// volumeReason returns the problem of the node that holds a claim's volume.
func volumeReason(f Facts, subject string, c Claim) (Reason, bool) {
	home := Home(c.Volume)
	if home == "" {
		return Reason{}, false
	}
	node, ok := f.node(home)
	switch {
	case !ok:
		return Reason{subject, fmt.Sprintf("its volume is on node %s, which does not exist any more", home),
			"if neither the node nor its disks will come back, delete the claim; see carve.csi.local/on-node-loss"}, true
	case !node.Ready:
		return Reason{subject, fmt.Sprintf("its volume is on node %s, which is not ready", home), "kubectl describe node " + home}, true
	case f.Pod.Spec.NodeName == "" && node.Unschedulable:
		return Reason{subject, fmt.Sprintf("its volume is on node %s, which takes no Pods", home), "kubectl uncordon " + home}, true
	}
	return Reason{}, false
}

func unscheduled(f Facts, mine, known int) []Reason {
	var reasons []Reason
	if waiting := f.waiting(); len(waiting) > 0 {
		if reason, ok := short(f, waiting); ok {
			reasons = append(reasons, reason)
		}
	}
	for _, c := range f.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			next := "kubectl describe pod " + f.Pod.Name
			if mine == 0 {
				next = "it has no volume of Carve: " + next
			}
			reasons = append(reasons, Reason{"scheduler", c.Message, next})
		}
	}
	if len(reasons) == 0 && known == 0 {
		reasons = append(reasons, Reason{"scheduler", "it has not looked at the Pod yet", "is a scheduler called " + f.Pod.Spec.SchedulerName + " running?"})
	}
	return reasons
}

// waiting returns our claims without volume or node.
func (f Facts) waiting() []Claim {
	return slices.DeleteFunc(slices.Clone(f.Claims), func(c Claim) bool {
		return c.Claim == nil || c.Claim.Spec.VolumeName != "" || c.Claim.DeletionTimestamp != nil || !served(c) || c.Claim.Annotations[selectedNode] != ""
	})
}

// short reports that no node can take the claims, with reasons for some nodes.
func short(f Facts, claims []Claim) (Reason, bool) {
	var lines []string
	for _, node := range f.Nodes {
		line := refusal(node, claims)
		if line == "" {
			return Reason{}, false // a node can, so the reason is another one
		}
		lines = append(lines, node.Name+": "+line)
	}
	if len(lines) == 0 {
		return Reason{}, false
	}
	const most = 5
	if more := len(lines) - most; more > 0 {
		lines = append(lines[:most], fmt.Sprintf("and %d more nodes", more))
	}
	return Reason{"nodes", "no node can take the volumes: " + strings.Join(lines, "; "),
		"kubectl carve capacity; free space, ask for less, or add nodes"}, true
}

// refusal returns "" if the node seems to have space for each claim by itself.
func refusal(node Node, claims []Claim) string {
	switch {
	case !node.Ready:
		return "not ready"
	case node.Unschedulable:
		return "takes no Pods"
	case !node.AgentReady:
		return "its agent is not ready"
	case !node.Registered:
		return "its kubelet does not know the driver"
	}
	for _, c := range claims {
		asked := c.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
		largest, ok := node.Largest[c.Class.Name]
		if !ok {
			return fmt.Sprintf("does not offer the StorageClass %s", c.Class.Name)
		}
		if asked.Value() > largest {
			return fmt.Sprintf("the largest volume of %s is %s, %s asks for %s",
				c.Class.Name, resource.NewQuantity(largest, resource.BinarySI), c.Name, asked.String())
		}
	}
	return ""
}

func unstarted(f Facts, mine int) []Reason {
	home := f.Pod.Spec.NodeName
	var reasons []Reason
	if node, ok := f.node(home); !ok {
		reasons = append(reasons, Reason{"node/" + home, "it does not exist any more", "delete the Pod"})
	} else if mine > 0 {
		switch {
		case !node.Ready:
			reasons = append(reasons, Reason{"node/" + home, "it is not ready", "kubectl describe node " + home})
		case !node.AgentReady:
			reasons = append(reasons, Reason{"node/" + home, "the node agent is not ready, so that volumes cannot be mounted", "kubectl carve doctor"})
		case !node.Registered:
			reasons = append(reasons, Reason{"node/" + home, "the kubelet does not know the driver", "look at the container node of its Pod of carve-node; see kubeletDir"})
		}
	}
	for _, name := range []string{"FailedMount", "FailedMapVolume", "FailedAttachVolume"} {
		if event, ok := find(f.PodEvents, name); ok {
			reasons = append(reasons, Reason{"kubelet", event.Message, "the log of the container node of carve-node on " + home})
		}
	}
	for _, status := range slices.Concat(f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses) {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing" {
			reasons = append(reasons, Reason{"container/" + status.Name, strings.TrimSpace(waiting.Reason + " " + waiting.Message),
				"not about volumes: kubectl logs " + f.Pod.Name + " -c " + status.Name})
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, Reason{"pod/" + f.Pod.Name, "it was given to node " + home + ", and is not ready yet", "kubectl describe pod " + f.Pod.Name})
	}
	return reasons
}

// Home returns the node that holds a volume, or "" if the volume does not name one.
func Home(pv *corev1.PersistentVolume) string {
	switch {
	case pv.Spec.NodeAffinity == nil && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver:
		return pv.Spec.CSI.VolumeAttributes[names.ContextNode]
	case pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil:
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == names.TopologyNode && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

func (f Facts) node(name string) (Node, bool) {
	i := slices.IndexFunc(f.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return f.Nodes[i], true
}

func className(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.StorageClassName == nil {
		return ""
	}
	return *c.Spec.StorageClassName
}

func missing(c *corev1.PersistentVolumeClaim) bool {
	return condition(c, names.ConditionVolumeMissing) != ""
}

// condition returns the message of a true condition.
func condition(c *corev1.PersistentVolumeClaim, kind string) string {
	for _, one := range c.Status.Conditions {
		if string(one.Type) == kind && one.Status == corev1.ConditionTrue {
			return one.Message
		}
	}
	return ""
}

func find(events []Event, reason string) (Event, bool) {
	i := slices.IndexFunc(events, func(e Event) bool { return e.Reason == reason })
	if i < 0 {
		return Event{}, false
	}
	return events[i], true
}
