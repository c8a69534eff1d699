// Package coredns is the DNS of test clusters: CoreDNS, built beside Kubernetes, and the
// objects that run it in the cluster.
//
// It serves the cluster's zone and the reverse zones of its addresses, and nothing else:
// the cluster has no way out, so there is no server to forward a question to.
package coredns

import _ "embed"

// Image is the name of the image that the manifests ask for. It must be loaded into
// every node before they are applied: it can be pulled from nowhere.
const Image = "carve.csi.local/coredns:dev"

// Manifests are the cluster's DNS as YAML documents, to be applied as they are. The
// address of the Service is controlplane.ClusterDNS, and the zone is
// controlplane.ClusterDomain.
//
//go:embed manifests.yaml
var Manifests []byte
