// Package checkout finds the source tree that the harness was started in: what the
// harness builds (the Kubernetes binary, the images) it builds from there.
package checkout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// moduleLine is how the go.mod of the main module begins.
const moduleLine = "module github.com/carve-csi/carve\n"

// Root returns the absolute path of the root of the source tree, which is the nearest
// folder at or above the working directory that holds the main module. The harness'
// own module is its folder e2e.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for folder := start; ; folder = filepath.Dir(folder) {
		content, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), moduleLine) {
			return folder, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find the source tree: %w", err)
		}
		if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("find the source tree: %s is not inside a checkout of Carve", start)
		}
	}
}
