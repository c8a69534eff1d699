package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/vm/agent"
)

// LoadImage loads the image in the tar (as docker save writes it) into every
// node's containerd, under its own name and under the aliases, which must be
// complete: "docker.io/library/busybox:1.36".
func (c *Cluster) LoadImage(ctx context.Context, path string, aliases ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		group.Go(func() error {
			if err := importImage(ctx, c.client(n), path, aliases...); err != nil {
				return fmt.Errorf("node %s: %w", n.name(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// importImage streams an image to a machine's containerd.
func importImage(ctx context.Context, client *agent.Client, path string, aliases ...string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	defer file.Close()
	var output strings.Builder
	code, err := client.Run(ctx, agent.Command{
		Argv:  []string{"ctr", "--namespace", "k8s.io", "images", "import", "-"},
		Stdin: file, Stdout: &output, Stderr: &output,
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("load the image %s: %w: %s", path, err, strings.TrimSpace(output.String()))
	}
	name, err := importedName(output.String())
	if err != nil {
		return fmt.Errorf("load the image %s: %w", path, err)
	}
	for _, alias := range aliases {
		if _, err := client.Output(ctx, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, alias); err != nil {
			return fmt.Errorf("name the image %s: %w", alias, err)
		}
	}
	return nil
}

// importedName finds the image's name in what ctr said:
// "unpacking NAME (sha256:…)...done".
func importedName(output string) (string, error) {
	for line := range strings.Lines(output) {
		if rest, ok := strings.CutPrefix(line, "unpacking "); ok {
			if name, _, ok := strings.Cut(rest, " ("); ok {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("ctr did not say the image's name: %q", output)
}
