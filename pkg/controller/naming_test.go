package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/waittest"
)

// replicasAt writes the slice of a Service that has replicas at these addresses.
func replicasAt(t *testing.T, client kubernetes.Interface, namespace, service string, addresses ...string) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
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
}

func TestANodeThatConnectsAgainIsNamedTheAddressesAgain(t *testing.T) {
	client := realisticClient(t)
	replicasAt(t, client, "carve-system", "carve-uplink", "10.0.0.1")
	r := startReplica(t, client, "only")
	node := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	connect(t, client, "n1", node, r)
	wantNamed(t, node, 1, "10.0.0.1")
	connect(t, client, "n1", node, r) // as one that presents its next token
	wantNamed(t, node, 2, "10.0.0.1")
}

// namedNode passes on what is named to it, as lvmd does.
type namedNode struct {
	*lvmdfake.Server
	named chan<- uplink.Named
}

func (n namedNode) SetControllers(ctx context.Context, r *lvmdv1.SetControllersRequest) (*lvmdv1.SetControllersResponse, error) {
	caller, _ := peer.FromContext(ctx)
	named := uplink.Named{From: caller.Addr}
	for _, address := range r.GetAddresses() {
		named.Addresses = append(named.Addresses, netip.MustParseAddr(address))
	}
	n.named <- named
	return &lvmdv1.SetControllersResponse{}, nil
}

// The node asks DNS for the first replica's address, which is itself.
func TestANodeConnectsToANewReplicaThatDNSDoesNotHave(t *testing.T) {
	client := realisticClient(t)
	first := startReplica(t, client, "first")
	_, port, err := net.SplitHostPort(first.uplink)
	must.Succeed(t, err)
	named := make(chan uplink.Named, 16)
	connectClient(t, client, uplink.ClientOptions{NodeName: "n1", Log: slog.New(slog.DiscardHandler), Named: named}, func() *grpc.Server {
		server := grpc.NewServer(uplink.ServerOptions()...)
		lvmdv1.RegisterLVMDServer(server, namedNode{lvmdfake.New("n1", lvmdfake.Class{Name: "local", Bytes: gib}), named})
		return server
	}, first)
	waittest.Until(t, "the node is connected to the first", func() bool { return first.c.core.Fleet.Connected() == 1 })
	second := startReplica(t, client, "second", func(o *Options) { o.UplinkListen = "127.0.0.2:" + port })
	replicasAt(t, client, "carve-system", "carve-uplink", "127.0.0.1", "127.0.0.2")
	waittest.Until(t, "the node is connected to the second", func() bool { return second.c.core.Fleet.Connected() == 1 })
}

func TestAddressesThatAreNamedAreThoseThatDNSHas(t *testing.T) {
	slice := func(kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: kind, Endpoints: endpoints}
	}
	at := func(ready *bool, addresses ...string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	got := addressesIn([]*discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv4, at(ptr.To(true), "10.0.0.2"), at(nil, "10.0.0.1"), at(ptr.To(false), "10.0.0.3")),
		slice(discoveryv1.AddressTypeIPv4, at(nil, "10.0.0.1")), // while an endpoint moves to another slice
		slice(discoveryv1.AddressTypeIPv6, at(nil, "fd00::1")),
		slice(discoveryv1.AddressTypeFQDN, at(nil, "replica.example.com")),
		slice(discoveryv1.AddressTypeIPv4),
	})
	if want := []string{"10.0.0.1", "10.0.0.2", "fd00::1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
