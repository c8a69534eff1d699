package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/debian"
)

// suite is the release of Debian that images are made of, as the Dockerfile's.
const suite = "bookworm"

// layerVersion is part of the key of cached layers: it is to be counted up when the code
// that makes or reduces them changes what they hold.
const layerVersion = "5"

// layerName is the name of the tar in its cache entry.
const layerName = "layer.tar"

// debianLayer returns the path of a layer with the packages, all they depend on, and what
// is in extra. Packages are as new as the day on which the cache entry was made.
func debianLayer(ctx context.Context, architecture string, packages []string, extra tree, progress io.Writer) (string, error) {
	additions, err := extra.tar()
	if err != nil {
		return "", err
	}
	key := cache.Key(layerVersion, suite, architecture, strings.Join(packages, " "), string(additions))
	entry, err := cache.Entry(ctx, "image-layer", key, func(ctx context.Context, dir string) error {
		if progress != nil {
			fmt.Fprintf(progress, "unpacking %s\n", strings.Join(packages, " "))
		}
		root, err := unpack(ctx, architecture, packages, progress, dir)
		if err != nil {
			return err
		}
		unpacked, err := root.unpackedPackages()
		if err != nil {
			return err
		}
		root.mergeUsr()
		root.drop()
		maps.Copy(root, unpacked)
		maps.Copy(root, extra)
		if err := root.pruneLibraries(); err != nil {
			return err
		}
		output, err := os.Create(filepath.Join(dir, layerName))
		if err != nil {
			return fmt.Errorf("make a layer: %w", err)
		}
		if err := root.writeTar(output); err != nil {
			_ = output.Close()
			return err
		}
		return output.Close()
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(entry, layerName), nil
}

// unpack downloads the packages and all they depend on and unpacks them, without running
// their scripts.
func unpack(ctx context.Context, architecture string, packages []string, progress io.Writer, dir string) (tree, error) {
	if err := debian.Ensure(ctx, progress, "mmdebstrap", "debian-archive-keyring"); err != nil {
		return nil, err
	}
	archive := filepath.Join(dir, "unpacked.tar")
	command := exec.CommandContext(ctx, "mmdebstrap",
		"--variant=extract", "--format=tar", "--architectures="+architecture, "--include="+strings.Join(packages, ","),
		"--skip=cleanup/apt/cache", // The names of what was downloaded say the versions.
		"--aptopt=Acquire::Retries \"3\"",
		suite, archive)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0", "TMPDIR="+dir)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("unpack packages: %w\n%s", err, bytes.TrimSpace(output.Bytes()))
	}
	input, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("unpack packages: %w", err)
	}
	defer input.Close()
	root, err := readTree(input)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(archive); err != nil {
		return nil, fmt.Errorf("unpack packages: %w", err)
	}
	return root, nil
}
