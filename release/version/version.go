// Package version reads Carve's version, the same in everything that is released.
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

// ErrNone is the error of a changelog without a version.
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
