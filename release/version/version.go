// Package version reads Carve's version, the same in everything that is released, and the versions of Kubernetes that
// carve-scheduler is built for.
package version

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// heading is that of a version in the changelog; the newest is first.
var heading = regexp.MustCompile(`(?m)^## (v[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?)$`)

// ErrNone is the error of a file without a version.
var ErrNone = errors.New("it has no version")

// Read returns the version of the source tree: the newest of CHANGELOG.md, with a v.
func Read(root string) (string, error) {
	file := filepath.Join(root, "CHANGELOG.md")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the version: %w", err)
	}
	match := heading.FindSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("read the version: %s: %w", file, ErrNone)
	}
	return string(match[1]), nil
}

// kubernetes is the minor version of Kubernetes that a module of the scheduler requires.
var kubernetes = regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes v(\d+\.\d+)\.`)

// Minors returns the minor versions of Kubernetes, such as 1.37, that carve-scheduler is built for, the newest last:
// that of go.mod in pkg/scheduler/plugin, and that of each go-MINOR.mod beside it.
func Minors(root string) ([]string, error) {
	dir := filepath.Join(root, "pkg/scheduler/plugin")
	files, err := filepath.Glob(filepath.Join(dir, "go-*.mod"))
	if err != nil {
		return nil, fmt.Errorf("list the versions of Kubernetes: %w", err)
	}
	var minors []string
	for _, file := range append(files, filepath.Join(dir, "go.mod")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("list the versions of Kubernetes: %w", err)
		}
		match := kubernetes.FindSubmatch(text)
		if match == nil {
			return nil, fmt.Errorf("list the versions of Kubernetes: %s: %w", file, ErrNone)
		}
		minors = append(minors, string(match[1]))
	}
	return minors, nil
}
