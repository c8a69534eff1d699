package vm

import (
	"errors"
	"fmt"
	"os"
)

// Packages are the Debian packages that this package needs on the host.
var Packages = []string{"qemu-system-x86"}

// MakeSparse makes a file of the given size, in bytes, that takes no space yet. It
// is an error if the file is there.
func MakeSparse(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	return nil
}
