package image

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
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

// carvePrograms returns the programs of Carve's image from the source tree root.
func carvePrograms(root string) (programs []gobuild.Program) {
	for _, name := range []string{"lvmd", "node", "controller"} {
		programs = append(programs, gobuild.Program{Name: "carve-" + name, Dir: root, Package: "cmd/" + name})
	}
	return programs
}

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
	programLayer, err := o.programLayer(ctx, root, carvePrograms(root))
	if err != nil {
		return "", err
	}
	output := orDefault(o.Output, filepath.Join(root, "bin", "carve-image.tar"))
	return output, description{
		name:   orDefault(o.Name, CarveName),
		layers: []v1.Layer{toolLayer, programLayer}, architecture: o.Architecture,
	}.write(output)
}

// programLayer builds programs of one module of the source tree root for o's architecture, with its version. It
// returns the layer with them and their licences.
func (o Options) programLayer(ctx context.Context, root string, programs []gobuild.Program) (v1.Layer, error) {
	dir, err := os.MkdirTemp("", "carve-image-")
	if err != nil {
		return nil, fmt.Errorf("build Carve's programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	layer, architecture := make(tree), orDefault(o.Architecture, amd64)
	for _, p := range programs {
		variables := map[string]string{"main.version": orDefault(o.Version, version(ctx, root))}
		maps.Copy(variables, p.Variables)
		p.Architecture, p.Variables = architecture, variables
		built := filepath.Join(dir, p.Name)
		if err := gobuild.Build(ctx, p, built); err != nil {
			return nil, err
		}
		if err := layer.add("usr/local/bin/"+p.Name, built, 0o755); err != nil {
			return nil, err
		}
	}
	if err := addLicences(ctx, layer, filepath.Join(dir, licences), architecture, programs); err != nil {
		return nil, err
	}
	return treeLayer(layer)
}

// licences is the folder of an image with those of Carve's programs and of what they are linked of.
const licences = "licenses"

// addLicences adds the licences of programs of one module to a layer, by way of the folder dir.
func addLicences(ctx context.Context, layer tree, dir, architecture string, programs []gobuild.Program) error {
	own, err := checkout.Root() // An earlier tree has no command for it.
	if err != nil {
		return err
	}
	arguments := []string{
		"run", filepath.Join(own, "deploy/image/licenses/main.go"), "-os=linux", "-arch=" + architecture, "-modfile=" + programs[0].Modfile, dir,
	}
	for _, p := range programs {
		arguments = append(arguments, "./"+p.Package)
	}
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = programs[0].Dir
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
