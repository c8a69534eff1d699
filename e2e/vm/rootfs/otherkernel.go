package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/debian"
)

// otherKernelRevision is part of the cache key; raise it when the way the kernel is made
// ready changes.
const otherKernelRevision = "1"

// WithKernel returns the base with the kernel of another release of Debian, named by its
// suite, in place of its own. The kernel is fetched when the cache has none, which takes
// about a minute and is reported to progress. The root disk has no modules of that kernel,
// and modprobe finds none: the initial RAM file system loads those that are named, with
// what they need, after the ones that any machine boots with. It needs root.
func (b Base) WithKernel(ctx context.Context, progress io.Writer, suite string, modules []string) (Base, error) {
	all := append(append([]string(nil), earlyModules...), modules...)
	key := cache.Key(otherKernelRevision, suite, strings.Join(all, " "))
	dir, err := cache.Entry(ctx, "node-kernel", key, func(ctx context.Context, dir string) error {
		fmt.Fprintf(progress, "fetching the kernel of Debian %s (once, about a minute)\n", suite)
		return fetchKernel(ctx, progress, dir, suite, all)
	})
	if err != nil {
		return Base{}, err
	}
	return b.kernelFrom(dir)
}

// fetchKernel unpacks the kernel of a suite, without installing it.
func fetchKernel(ctx context.Context, progress io.Writer, dir, suite string, modules []string) error {
	if err := debian.Ensure(ctx, progress, append([]string{"kmod"}, hostPackages...)...); err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	command := exec.CommandContext(ctx, "mmdebstrap", "--mode=root", "--variant=extract", "--format=directory", "--quiet",
		"--include=linux-image-amd64", "--dpkgopt=path-exclude=/usr/share/*", `--aptopt=Acquire::Languages "none"`,
		`--aptopt=Acquire::Retries "3"`,
		// The lists of a release that gets no updates any more are old. Their signature counts.
		`--aptopt=Acquire::Check-Valid-Until "false"`,
		suite, tree)
	if err := runCommand(command); err != nil {
		return err
	}
	version, err := kernelVersion(tree)
	if err != nil {
		return err
	}
	// What a package does when it is installed has not been done.
	if err := runCommand(exec.CommandContext(ctx, "depmod", "--basedir", tree, version)); err != nil {
		return err
	}
	if err := keepKernel(ctx, dir, tree, version, modules); err != nil {
		return err
	}
	return os.RemoveAll(tree)
}

// keepKernel puts the kernel in the tree, its version, and the named modules with what
// they need into dir.
func keepKernel(ctx context.Context, dir, tree, version string, modules []string) error {
	folder := filepath.Join(tree, "lib", "modules", version)
	names, err := loadOrder(folder, modules)
	if err != nil {
		return err
	}
	return errors.Join(
		writeModules(filepath.Join(dir, earlyFile), folder, names),
		unpackKernel(ctx, filepath.Join(tree, "boot", "vmlinuz-"+version), filepath.Join(dir, kernelFile)),
		os.WriteFile(filepath.Join(dir, versionFile), []byte(version), 0o644),
	)
}

// kernelFrom returns the base with the kernel that keepKernel put into dir.
func (b Base) kernelFrom(dir string) (Base, error) {
	version, err := os.ReadFile(filepath.Join(dir, versionFile))
	if err != nil {
		return Base{}, fmt.Errorf("read the kernel's version: %w", err)
	}
	b.Kernel, b.Version, b.early = filepath.Join(dir, kernelFile), string(version), filepath.Join(dir, earlyFile)
	return b, nil
}
