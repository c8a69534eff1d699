package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/carve-csi/carve/e2e/cache"
)

// Options says what to call an image and where to put it. The zero value is good.
type Options struct {
	// Name is the image's name and tag. Each image has a default.
	Name string
	// Output is the file to write. By default it is one in the harness' cache, or,
	// for Carve's images, bin/carve-image.tar and bin/carve-scheduler-image.tar in the source tree.
	Output string
	// Version is what Carve's programs say that they are; by default what git says
	// of the source tree.
	Version string
	// Architecture names the processors of Carve's images as Go does: amd64, the default, or arm64.
	Architecture string
	// Kubernetes is the minor version that carve-scheduler's image is for, by default that of the
	// test clusters.
	Kubernetes string
	// Root is the source tree that Carve's image is made from, by default the one that the
	// harness was started in.
	Root string
	// Progress gets what takes long. It may be nil.
	Progress io.Writer
}

// searchPath is the PATH of containers.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// amd64 is the architecture of images that are for no other.
const amd64 = "amd64"

// description is what an image is made of.
type description struct {
	name   string
	layers []v1.Layer
	// entrypoint may be empty: the Pod says what to run.
	entrypoint []string
	// user is whom the entrypoint runs as, UID:GID; empty for root.
	user string
	// architecture is as Go calls it; empty for amd64.
	architecture string
}

// write makes the image and writes it to output, all or nothing.
func (d description) write(output string) error {
	tag, err := name.NewTag(d.name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("name of an image: got %q, want REGISTRY/NAME:TAG: %w", d.name, err)
	}
	image, err := d.image()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return fmt.Errorf("write image %s: %w", d.name, err)
	}
	partial := output + ".partial"
	if err := tarball.WriteToFile(partial, tag, image); err != nil {
		return fmt.Errorf("write image %s: %w", d.name, err)
	}
	if err := os.Rename(partial, output); err != nil {
		return fmt.Errorf("write image %s: %w", d.name, err)
	}
	return nil
}

func (d description) image() (v1.Image, error) {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: orDefault(d.architecture, amd64),
		OS:           "linux",
		Created:      v1.Time{Time: epoch},
		RootFS:       v1.RootFS{Type: "layers"},
		Config:       v1.Config{Env: []string{searchPath}, Entrypoint: d.entrypoint, User: d.user, WorkingDir: "/"},
	})
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", d.name, err)
	}
	if image, err = mutate.AppendLayers(image, d.layers...); err != nil {
		return nil, fmt.Errorf("make image %s: %w", d.name, err)
	}
	return image, nil
}

// fileLayer returns the tar at path as a layer.
func fileLayer(path string) (v1.Layer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a layer: %w", err)
	}
	return static.NewLayer(content, types.DockerUncompressedLayer), nil
}

// treeLayer returns the tree as a layer.
func treeLayer(t tree) (v1.Layer, error) {
	content, err := t.tar()
	if err != nil {
		return nil, err
	}
	return static.NewLayer(content, types.DockerUncompressedLayer), nil
}

// cached writes an image to the output, or, without one, to the harness' cache: inputs
// are the files that, with its name, decide what is in it.
func (o Options) cached(ctx context.Context, kind, name string, inputs []string, describe func() (description, error)) (string, error) {
	write := func(output string) error {
		d, err := describe()
		if err != nil {
			return err
		}
		d.name = name
		return d.write(output)
	}
	if o.Output != "" {
		return o.Output, write(o.Output)
	}
	digest, err := cache.FileKey(inputs...)
	if err != nil {
		return "", err
	}
	key := cache.Key(layerVersion, name, digest)
	entry, err := cache.Entry(ctx, "image", key, func(_ context.Context, dir string) error {
		return write(filepath.Join(dir, kind+".tar"))
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(entry, kind+".tar"), nil
}

// orDefault returns value, or fallback where value is empty.
func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
