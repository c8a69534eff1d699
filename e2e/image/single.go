package image

import (
	"context"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/coredns"
	"github.com/carve-csi/carve/e2e/gobuild"
	"github.com/carve-csi/carve/e2e/kube"
)

// PauseName is the default name of the image of Pods' sandboxes, for containerd's
// configuration.
const PauseName = "carve.csi.local/pause:dev"

// Pause makes the image of Pods' sandboxes and returns its path.
func Pause(ctx context.Context, o Options) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	programs, err := gobuild.Cached(ctx, gobuild.Program{
		Name: "pause",
		Dir:  filepath.Join(root, "e2e", "image", "pause"),
	}, o.Progress)
	if err != nil {
		return "", err
	}
	return o.single(ctx, orDefault(o.Name, PauseName), "pause", "pause", filepath.Join(programs, "pause"))
}

// CoreDNS makes the image of the cluster's DNS and returns its path.
func CoreDNS(ctx context.Context, o Options) (string, error) {
	program, err := kube.BuildDNS(ctx, o.Progress)
	if err != nil {
		return "", err
	}
	return o.single(ctx, orDefault(o.Name, coredns.Image), "coredns", "coredns", program)
}

// single makes an image of one static program, which it runs from the path.
func (o Options) single(ctx context.Context, name, kind, path, program string) (string, error) {
	return o.cached(ctx, kind, name, []string{program}, func() (description, error) {
		root := make(tree)
		if err := root.add(path, program, 0o755); err != nil {
			return description{}, err
		}
		layer, err := treeLayer(root)
		return description{layers: []v1.Layer{layer}, entrypoint: []string{"/" + path}}, err
	})
}
