// Package earlier gives tests the source tree of an earlier version of Carve, to run it beside
// this one.
package earlier

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/checkout"
)

// Commit stands for the release before until there is one. It is the last commit without what
// makes skew interesting: nodes that know of claims that wait, adoption, I/O limits and volumes that are
// modified are not in its API, its capacity objects have other names, and its lvmd was one package.
const Commit = "6ee0a39dbcb073a78b871146183337c3da3218ac"

// Tree returns a folder with the source tree of Commit. It fails where the clone has no history that
// goes back so far.
func Tree(ctx context.Context) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	return treeOf(ctx, root, Commit)
}

// treeOf is Tree of a commit of the repository at root.
func treeOf(ctx context.Context, root, commit string) (string, error) {
	// A commit that is in the repository only, as after its history was written again, is in no clone.
	if err := git(ctx, root, "merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
		return "", fmt.Errorf("the earlier version, commit %s, is not in the history of %s; a shallow clone gets it by git fetch --unshallow: %w", commit, root, err)
	}
	folder, err := cache.Entry(ctx, "earlier", cache.Key(commit), func(ctx context.Context, dir string) error {
		archive := filepath.Join(dir, "tree.tar")
		if err := git(ctx, root, "archive", "--format=tar", "--output="+archive, commit); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, "tree"), 0o755); err != nil {
			return err
		}
		if err := run(exec.CommandContext(ctx, "tar", "--extract", "--file="+archive, "--directory="+filepath.Join(dir, "tree"))); err != nil {
			return err
		}
		return os.Remove(archive)
	})
	return filepath.Join(folder, "tree"), err
}

func git(ctx context.Context, folder string, arguments ...string) error {
	command := exec.CommandContext(ctx, "git", arguments...)
	command.Dir = folder
	return run(command)
}

func run(command *exec.Cmd) error {
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, output)
	}
	return nil
}
