package image

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/gobuild"
)

// CarveName is the default name of Carve's image.
const CarveName = "carve.csi.local/carve:dev"

// packageList is the list of packages of Carve's image, in the source tree. The
// Dockerfile reads it too.
const packageList = "deploy/image/packages.txt"

// programs are Carve's commands. In the image they are called carve-NAME.
var programs = []string{"lvmd", "node", "controller"}

// Carve makes Carve's image from the source tree and returns its path.
func Carve(ctx context.Context, o Options) (string, error) {
	root := o.Root
	if root == "" {
		var err error
		if root, err = checkout.Root(); err != nil {
			return "", err
		}
	}
	packages, err := readPackages(filepath.Join(root, packageList))
	if err != nil {
		return "", err
	}
	tools, err := debianLayer(ctx, orDefault(o.Architecture, amd64), packages, systemFiles(), o.Progress)
	if err != nil {
		return "", err
	}
	toolLayer, err := fileLayer(tools)
	if err != nil {
		return "", err
	}
	programLayer, err := carveLayer(ctx, root, orDefault(o.Architecture, amd64), orDefault(o.Version, version(ctx, root)))
	if err != nil {
		return "", err
	}
	output := orDefault(o.Output, filepath.Join(root, "bin", "carve-image.tar"))
	return output, description{
		name:   orDefault(o.Name, CarveName),
		layers: []v1.Layer{toolLayer, programLayer}, architecture: o.Architecture,
	}.write(output)
}

// carveLayer builds Carve's programs and returns the layer with them.
func carveLayer(ctx context.Context, root, architecture, version string) (v1.Layer, error) {
	dir, err := os.MkdirTemp("", "carve-image-")
	if err != nil {
		return nil, fmt.Errorf("build Carve's programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	layer := make(tree)
	for _, name := range programs {
		built := filepath.Join(dir, name)
		err := gobuild.Build(ctx, gobuild.Program{
			Name: name, Dir: root, Package: "cmd/" + name, Architecture: architecture,
			Variables: map[string]string{"main.version": version},
		}, built)
		if err != nil {
			return nil, err
		}
		if err := layer.add("usr/local/bin/carve-"+name, built, 0o755); err != nil {
			return nil, err
		}
	}
	if err := addLicences(ctx, layer, root, architecture, filepath.Join(dir, licences)); err != nil {
		return nil, err
	}
	return treeLayer(layer)
}

// licences is the folder of an image with those of Carve's programs and of what they are linked of.
const licences = "licenses"

// addLicences adds the licences of the programs of a source tree to a layer, by way of the folder dir.
func addLicences(ctx context.Context, layer tree, root, architecture, dir string) error {
	own, err := checkout.Root() // An earlier tree has no command for it.
	if err != nil {
		return err
	}
	arguments := []string{"run", filepath.Join(own, "deploy/image/licenses/main.go"), "-os=linux", "-arch=" + architecture, dir}
	for _, name := range programs {
		arguments = append(arguments, "./cmd/"+name)
	}
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the licences: %w\n%s", err, bytes.TrimSpace(output))
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return layer.add(licences+strings.TrimPrefix(path, dir), path, 0o644)
	})
}

// version returns what git says of the source tree, or "dev" without git.
func version(ctx context.Context, root string) string {
	command := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty")
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		return "dev"
	}
	return strings.TrimSpace(string(output))
}
