package cluster

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/vm/agent"
)

const (
	// imagesTag is the tag of the share through which images come to a machine. The
	// agent's stream would do, but takes an emulated machine ten times as long.
	imagesTag = "images"
	// imagesFolder is where a machine has that share.
	imagesFolder = "/run/images"
	// loadedFolder has an empty file on a node for each image loaded, on the same
	// disk as the images.
	loadedFolder = "/var/lib/carve-harness/images"
)

// LoadImage loads the image in the tar (as docker save writes it) into every
// node's containerd, under its own name and under the aliases, which must be
// complete: "docker.io/library/busybox:1.36". An image that was the last to be
// loaded under its name is not loaded again.
func (c *Cluster) LoadImage(ctx context.Context, path string, aliases ...string) error {
	name, digest, err := identify(path)
	if err != nil {
		return err
	}
	folder := filepath.Join(c.dir, imagesTag)
	staged, err := stage(ctx, path, folder, digest)
	if err != nil {
		return err
	}
	group, together := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		group.Go(func() error {
			client := c.client(n)
			if err := importOnce(together, client, imageMark(name, digest), filepath.Base(staged)); err != nil {
				return fmt.Errorf("load the image %s into %s: %w", name, n.name(), err)
			}
			return tagImage(together, client, name, aliases)
		})
	}
	return errors.Join(group.Wait(), os.Remove(staged))
}

// identify returns the name of the one image in a tar, and the tar's digest.
func identify(path string) (name, digest string, err error) {
	if name, err = imageName(path); err != nil {
		return "", "", err
	}
	digest, err = cache.FileKey(path)
	return name, digest, err
}

// imageMark is the file that a node has when it has the image.
func imageMark(name, digest string) string {
	// A slash separates folders, and nothing else in an image's name would.
	return loadedFolder + "/" + strings.ReplaceAll(name, "/", "~") + "@" + digest
}

// stage puts a file into the folder that the machines share, under a name that no
// other caller uses.
func stage(ctx context.Context, path, folder, digest string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("stage an image: %w", err)
	}
	file, err := os.CreateTemp(folder, digest+"-*.tar")
	if err != nil {
		return "", fmt.Errorf("stage an image: %w", err)
	}
	if err := file.Close(); err != nil {
		return "", fmt.Errorf("stage an image: %w", err)
	}
	if err := copySparse(ctx, path, file.Name()); err != nil {
		return "", errors.Join(fmt.Errorf("stage an image: %w", err), os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// importOnce imports the image in the shared folder unless the mark is there.
func importOnce(ctx context.Context, client *agent.Client, mark, file string) error {
	if _, err := client.Output(ctx, "test", "-e", mark); err == nil {
		return nil
	}
	if err := importImage(ctx, client, file); err != nil {
		return err
	}
	// Marks of the same name's earlier images are no longer true.
	folder, base := filepath.Split(mark)
	prefix, _, _ := strings.Cut(base, "@")
	for _, argv := range [][]string{
		{"mkdir", "-p", folder},
		{"find", folder, "-name", prefix + "@*", "-delete"},
	} {
		if _, err := client.Output(ctx, argv...); err != nil {
			return fmt.Errorf("remember the image: %w", err)
		}
	}
	return client.Put(ctx, mark, 0o644, strings.NewReader(""))
}

// importImage imports the image in a file of the shared folder.
func importImage(ctx context.Context, client *agent.Client, file string) error {
	_, err := client.Output(ctx, "ctr", "--namespace", "k8s.io", "images", "import", filepath.Join(imagesFolder, file))
	return err
}

func tagImage(ctx context.Context, client *agent.Client, name string, aliases []string) error {
	for _, alias := range aliases {
		if _, err := client.Output(ctx, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, alias); err != nil {
			return fmt.Errorf("name the image %s: %w", alias, err)
		}
	}
	return nil
}

// imageName reads the name of the one image in a tar as docker save writes it.
func imageName(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("load an image: %w", err)
	}
	defer file.Close()
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return "", fmt.Errorf("load an image: %s has no manifest.json: it is not what docker save writes", path)
		}
		if err != nil {
			return "", fmt.Errorf("load the image %s: %w", path, err)
		}
		if header.Name != "manifest.json" {
			continue
		}
		var manifest []struct{ RepoTags []string }
		if err := json.NewDecoder(reader).Decode(&manifest); err != nil {
			return "", fmt.Errorf("load the image %s: read its manifest: %w", path, err)
		}
		if len(manifest) != 1 || len(manifest[0].RepoTags) != 1 {
			return "", fmt.Errorf("load the image %s: want one image with one name", path)
		}
		return manifest[0].RepoTags[0], nil
	}
}
