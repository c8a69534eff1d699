package controller

import (
	"fmt"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// replicasAt writes the slice of a Service that has replicas at these addresses, and one that DNS does not have.
func replicasAt(t *testing.T, client kubernetes.Interface, namespace, service string, addresses ...string) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}}},
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	api := client.DiscoveryV1().EndpointSlices(namespace)
	if last, err := api.Get(t.Context(), slice.Name, metav1.GetOptions{}); err == nil {
		slice.ResourceVersion = last.ResourceVersion
		must.Get(api.Update(t.Context(), slice, metav1.UpdateOptions{}))(t)
		return
	}
	must.Get(api.Create(t.Context(), slice, metav1.CreateOptions{}))(t)
}

// wantNamed waits until exactly these addresses were named to a node by the last of so many calls.
func wantNamed(t *testing.T, node *lvmdfake.Server, calls int, addresses ...string) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%d calls name addresses, the last ones %q", calls, addresses), func() bool {
		named := node.Named()
		return len(named) >= calls && slices.Equal(named[calls-1], addresses)
	}, func() any { return node.Named() })
}

// seesTwo waits until replicas know of two addresses.
func seesTwo(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		waittest.Until(t, "the replica sees two addresses", func() bool {
			r.c.naming.mu.Lock()
			defer r.c.naming.mu.Unlock()
			return len(r.c.naming.addresses) == 2
		})
	}
}

func TestEachReplicaNamesTheAddressesOfAllToANode(t *testing.T) {
	client := realisticClient(t)
	replicasAt(t, client, "carve-system", "carve-uplink", "10.0.0.2", "10.0.0.1")
	replicasAt(t, client, "carve-system", "other", "10.0.0.8")
	replicasAt(t, client, "default", "carve-uplink", "10.0.0.9")
	first, second := startReplica(t, client, "first"), startReplica(t, client, "second")
	seesTwo(t, first, second)
	node := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	connect(t, client, "n1", node, first, second)
	wantNamed(t, node, 2, "10.0.0.1", "10.0.0.2") // when it connects

	replicasAt(t, client, "carve-system", "carve-uplink", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	wantNamed(t, node, 4, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	replicasAt(t, client, "carve-system", "carve-uplink", "10.0.0.1", "10.0.0.3") // nothing that the node does not know
	seesTwo(t, first, second)
	replicasAt(t, client, "carve-system", "carve-uplink", "10.0.0.1", "10.0.0.4")
	wantNamed(t, node, 6, "10.0.0.1", "10.0.0.4")
	if n := len(node.Named()); n != 6 {
		t.Errorf("%d calls, want 6: %q", n, node.Named())
	}
	connect(t, client, "n1", node, first) // as one that presents its next token
	wantNamed(t, node, 7, "10.0.0.1", "10.0.0.4")
}
