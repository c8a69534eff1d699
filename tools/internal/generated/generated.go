// Package generated writes generated files, or holds them against what would be written.
package generated

import (
	"bytes"
	"fmt"
	"os"
)

// Put writes a file. With check it writes nothing, and fails where the file's content is
// another one.
func Put(path string, content []byte, check bool) error {
	if !check {
		return os.WriteFile(path, content, 0o644)
	}
	present, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(present, content) {
		err = fmt.Errorf("%s is not current: run make generate", path)
	}
	return err
}
