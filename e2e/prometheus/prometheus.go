// Package prometheus builds the Prometheus server that a test runs beside a cluster: of what it discovers
// targets by, it has Kubernetes only.
package prometheus

import (
	"context"
	"io"
	"path/filepath"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
)

// Build returns the path of the program, made now if the harness' cache does not have it, which takes some
// minutes. Progress is written to progress, which may be nil. Callers in several processes may run at once.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	const name = "prometheus"
	dir, err := gobuild.Cached(ctx, gobuild.Program{
		Name:   name,
		Dir:    filepath.Join(root, "monitoring"), // whose go.mod pins the version
		Import: "github.com/prometheus/prometheus/cmd/prometheus",
		Tags:   []string{"remove_all_sd", "enable_kubernetes_sd"},
	}, progress)
	return filepath.Join(dir, name), err
}
