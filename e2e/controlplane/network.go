package controlplane

import (
	"net/netip"

	"github.com/carve-csi/carve/e2e/netns"
)

// The cluster's networks. They are the same in every cluster: each has a network
// namespace of its own.
const (
	// ServiceSubnet is where the addresses of Services come from.
	ServiceSubnet = "10.96.0.0/16"
	// PodSubnet is what the controller-manager cuts the nodes' Pod subnets from.
	PodSubnet = "10.244.0.0/16"
	// NodePodBits is the length of the prefix of a node's Pod subnet.
	NodePodBits = 24
	// ClusterDomain is the domain of the cluster's DNS.
	ClusterDomain = "cluster.local"
	// ClusterDNS is the address of the Service of the cluster's DNS.
	ClusterDNS = "10.96.0.10"
	// apiServerPort is the port of the API server.
	apiServerPort = 6443
)

// Address returns the address of the API server, which is the bridge's. Nodes and, with
// routes to them, Pods reach it.
func Address() netip.Addr { return netns.DefaultGateway.Addr() }

// Endpoint returns the address and the port of the API server.
func Endpoint() netip.AddrPort { return netip.AddrPortFrom(Address(), apiServerPort) }

// firstService returns the address of the Service called kubernetes.
func firstService() netip.Addr {
	return netip.MustParsePrefix(ServiceSubnet).Addr().Next()
}
