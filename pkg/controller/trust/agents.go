package trust

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Agents knows the addresses from which node agents dial: those of the Pods with the agents'
// service account, which only Carve's administrators can create, and of their nodes. A peer at such
// an address must still authenticate.
type Agents struct{ pods cache.SharedIndexInformer }

// byAddress indexes Pods by the addresses that they may dial from, byNode by their current or
// intended node.
const byAddress, byNode = "address", "node"

// NewAgents returns Agents that watch a namespace once Run is called.
func NewAgents(client kubernetes.Interface, namespace, serviceAccount string) (*Agents, error) {
	pods := coreinformers.NewFilteredPodInformer(client, namespace, 0, cache.Indexers{byAddress: addressesOf, byNode: nodeOf}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.serviceAccountName", serviceAccount).String()
	})
	if err := pods.SetTransform(addressesOnly); err != nil {
		return nil, fmt.Errorf("prepare informer: %w", err)
	}
	return &Agents{pods}, nil
}

// Run watches until ctx is done.
func (a *Agents) Run(ctx context.Context) { a.pods.RunWithContext(ctx) }

// Synced reports whether all agents are known.
func (a *Agents) Synced() bool { return a.pods.HasSynced() }

// Known reports whether an agent may dial from an address.
func (a *Agents) Known(address netip.Addr) bool {
	pods, err := a.pods.GetIndexer().IndexKeys(byAddress, address.String())
	return err == nil && len(pods) > 0
}

// MayBeOn reports whether a node has an agent, or will have one. It returns true until Synced, and
// while no node has an agent: then the DaemonSet is gone, perhaps by mistake.
func (a *Agents) MayBeOn(node string) bool {
	if !a.Synced() {
		return true
	}
	pods, err := a.pods.GetIndexer().IndexKeys(byNode, node)
	// The last condition lists all nodes, but only for a node without an agent, which is rare.
	return err != nil || len(pods) > 0 || len(a.pods.GetIndexer().ListIndexFuncValues(byNode)) == 0
}

// nodeOf returns the node of a Pod. A Pod of a DaemonSet has it in its affinity before it is
// scheduled.
func nodeOf(obj any) ([]string, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return nil, nil
	}
	if pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}, nil
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	var nodes []string
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField {
				nodes = append(nodes, field.Values...)
			}
		}
	}
	return nodes, nil
}

// addressesOnly drops everything from a Pod except its identity, its node and its addresses.
func addressesOnly(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	lean := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName},
		Status:     v1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, HostIPs: pod.Status.HostIPs},
	}
	if pod.Spec.NodeName == "" {
		lean.Spec.Affinity = pod.Spec.Affinity
	}
	return lean, nil
}

// addressesOf returns the addresses of a Pod. An ended Pod has none, because another may have got
// its address.
func addressesOf(obj any) ([]string, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil, nil
	}
	var addresses []string
	add := func(ip string) {
		if address, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, address.Unmap().WithZone("").String())
		}
	}
	for _, ip := range pod.Status.PodIPs {
		add(ip.IP)
	}
	for _, ip := range pod.Status.HostIPs { // where traffic to Pods of other nodes is masqueraded
		add(ip.IP)
	}
	return addresses, nil
}
