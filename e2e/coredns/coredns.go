// Package coredns is the DNS of test clusters: CoreDNS, built from the nested module
// server, and the objects that run it in the cluster.
//
// It serves the cluster's zone and the reverse zones of its addresses, and nothing else:
// the cluster has no way out, so there is nobody to forward a question to.
package coredns

import (
	"context"
	_ "embed"
	"io"
	"path/filepath"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
)

// Image is the name of the image that the manifests ask for. It must be loaded into
// every node before they are applied: it can be pulled from nowhere.
const Image = "carve.csi.local/coredns:dev"

// Manifests are the cluster's DNS as YAML documents, to be applied as they are. The
// address of the Service is controlplane.ClusterDNS, and the zone is
// controlplane.ClusterDomain.
//
//go:embed manifests.yaml
var Manifests []byte

// Build returns the path of the static program, which takes about a minute to build where
// the cache does not have it. Progress is told to progress, which may be nil.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	return gobuild.Cached(ctx, gobuild.Program{
		Name: "coredns",
		Dir:  filepath.Join(root, "e2e", "coredns", "server"),
	}, progress)
}
