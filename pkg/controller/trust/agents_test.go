package trust

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func agentPod(name string, phase v1.PodPhase, host string, ips ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: name},
		Status: v1.PodStatus{Phase: phase, HostIPs: []v1.HostIP{{IP: host}}}}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
	}
	return pod
}

func TestTheAddressesOfAgentsAreKnown(t *testing.T) {
	client := fake.NewClientset(
		agentPod("one", v1.PodRunning, "192.0.2.1", "10.0.1.1", "2001:DB8:0::1"),
		agentPod("ended", v1.PodFailed, "192.0.2.9", "10.0.9.1"),
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Status: v1.PodStatus{PodIPs: []v1.PodIP{{IP: "10.0.8.1"}}}})
	agents := must.Get(NewAgents(client, "carve-system", "carve-node"))(t)
	if agents.Known(netip.MustParseAddr("10.0.1.1")) {
		t.Error("an address is known before any Pod is")
	}
	go agents.Run(t.Context())
	waittest.Until(t, "the agents are known", agents.Synced)
	knows := func(address string) bool { return agents.Known(netip.MustParseAddr(address)) }
	for address, want := range map[string]bool{"10.0.1.1": true, "2001:db8::1": true, "192.0.2.1": true,
		"10.0.9.1": false, "192.0.2.9": false, "10.0.8.1": false, "10.0.2.2": false} {
		if knows(address) != want {
			t.Errorf("%s is known: %t, want %t", address, !want, want)
		}
	}
	must.Get(client.CoreV1().Pods("carve-system").Create(t.Context(), agentPod("two", v1.PodRunning, "192.0.2.2", "10.0.2.2"), metav1.CreateOptions{}))(t)
	waittest.Until(t, "a new agent is known", func() bool { return knows("10.0.2.2") })
	must.Succeed(t, client.CoreV1().Pods("carve-system").Delete(t.Context(), "two", metav1.DeleteOptions{}))
	waittest.Until(t, "one that is gone is not", func() bool { return !knows("10.0.2.2") && !knows("192.0.2.2") })
}

func TestTheNodesOfAgentsAreKnown(t *testing.T) {
	on, unscheduled := agentPod("on", v1.PodPending, ""), agentPod("unscheduled", v1.PodPending, "")
	on.Spec.NodeName = "n1"
	unscheduled.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"n2"}}}}}}}}
	client := fake.NewClientset(on, unscheduled)
	agents := must.Get(NewAgents(client, "carve-system", "carve-node"))(t)
	if !agents.MayBeOn("n3") {
		t.Error("a node is said to have no agent before any Pod is known")
	}
	go agents.Run(t.Context())
	waittest.Until(t, "the agents are known", agents.Synced)
	for node, want := range map[string]bool{"n1": true, "n2": true, "n3": false} {
		if agents.MayBeOn(node) != want {
			t.Errorf("an agent may be on %s: %t, want %t", node, !want, want)
		}
	}
	for _, pod := range []string{"on", "unscheduled"} {
		must.Succeed(t, client.CoreV1().Pods("carve-system").Delete(t.Context(), pod, metav1.DeleteOptions{}))
	}
	waittest.Until(t, "while there is no agent at all, one may be missing anywhere", func() bool { return agents.MayBeOn("n3") })
}

// A new leader asks about every node before the nodes are connected.
func TestWhetherANodeHasAnAgentTakesNoLookAtAllNodes(t *testing.T) {
	const nodes = 1000
	pods := make([]k8sruntime.Object, nodes)
	for i := range pods {
		pod := agentPod(fmt.Sprint("agent-", i), v1.PodRunning, "")
		pod.Spec.NodeName = fmt.Sprint("n", i)
		pods[i] = pod
	}
	agents := must.Get(NewAgents(fake.NewClientset(pods...), "carve-system", "carve-node"))(t)
	go agents.Run(t.Context())
	waittest.Until(t, "the agents are known", agents.Synced)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range nodes {
		if !agents.MayBeOn("n7") {
			t.Fatal("the node is said to have no agent")
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / nodes; each > nodes {
		t.Errorf("each answer takes %d bytes, of %d nodes", each, nodes)
	}
}
