package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/gobuild"
	"github.com/carve-csi/carve/e2e/image"
	"github.com/carve-csi/carve/e2e/kube"
	"github.com/carve-csi/carve/e2e/vm/platform"
	"github.com/carve-csi/carve/e2e/vm/rootfs"
)

// assets are the things that all clusters share, kept in the cache. All are paths
// of files unless said otherwise.
type assets struct {
	kube     string            // the Kubernetes binary
	platform platform.Platform // not a path
	tools    string            // a disk with the Kubernetes binary for the nodes
	state    string            // a node's state disk as it is at first, images in it
}

// prepare makes what the cache does not have, which takes about ten minutes where it is
// empty. hardware is as in platform.Make.
func prepare(ctx context.Context, progress io.Writer, hardware bool) (assets, error) {
	var a assets
	if err := debian.Ensure(ctx, progress, "e2fsprogs", "nftables"); err != nil {
		return a, err
	}
	var pause, dns, workload string
	group, together := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		a.platform, err = platform.Make(together, progress, hardware)
		return err
	})
	group.Go(func() error { return a.prepareKubernetes(together, progress) })
	group.Go(func() (err error) {
		pause, err = image.Pause(together, image.Options{Progress: progress})
		return err
	})
	group.Go(func() (err error) {
		dns, err = image.CoreDNS(together, image.Options{Progress: progress})
		return err
	})
	group.Go(func() (err error) {
		workload, err = image.Workload(together, image.Options{Progress: progress})
		return err
	})
	if err := group.Wait(); err != nil {
		return a, err
	}
	var err error
	a.state, err = goldenState(ctx, progress, a, []string{pause, dns, workload})
	return a, err
}

// prepareKubernetes makes the Kubernetes binary and the disk that takes it to the
// nodes.
func (a *assets) prepareKubernetes(ctx context.Context, progress io.Writer) (err error) {
	if a.kube, err = kube.Build(ctx, progress); err != nil {
		return err
	}
	// The binary's own path is made of the digest of what it is made of.
	dir, err := cache.Entry(ctx, "node-tools", cache.Key(a.kube), func(ctx context.Context, dir string) error {
		tree := filepath.Join(dir, "tree")
		if err := os.Mkdir(tree, 0o755); err != nil {
			return err
		}
		binary := filepath.Join(tree, "kubernetes")
		if err := os.Link(a.kube, binary); err != nil {
			return err
		}
		for _, applet := range []string{kube.Kubelet, kube.Kubectl} {
			if err := os.Symlink("kubernetes", filepath.Join(tree, applet)); err != nil {
				return err
			}
		}
		return errors.Join(rootfs.MakeDisk(ctx, filepath.Join(dir, "tools.ext4"), tree), os.RemoveAll(tree))
	})
	a.tools = filepath.Join(dir, "tools.ext4")
	return err
}

// buildHost builds the program that runs a node's machine, into the folder dir.
func buildHost(ctx context.Context, dir string) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	output := filepath.Join(dir, hostProgram)
	// A running program's file cannot be written to, but replaced.
	partial := output + ".partial"
	program := gobuild.Program{Name: hostProgram, Dir: filepath.Join(root, "e2e"), Package: "cmd/vmhost"}
	if err := gobuild.Build(ctx, program, partial); err != nil {
		return "", err
	}
	if err := os.Rename(partial, output); err != nil {
		return "", fmt.Errorf("install %s: %w", hostProgram, err)
	}
	return output, nil
}
