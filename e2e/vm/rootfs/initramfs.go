package rootfs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/carve-csi/carve/e2e/cache"
	"github.com/carve-csi/carve/e2e/checkout"
)

// Initramfs returns the path of the initial RAM file system for the base, with
// the first process built from this source tree. The kernel takes several
// archives in a row as one.
func (b Base) Initramfs(ctx context.Context) (string, error) {
	root, err := checkout.Root()
	if err != nil {
		return "", err
	}
	build, err := os.MkdirTemp("", "carve-nodeinit-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(build) }()
	binary := filepath.Join(build, "nodeinit")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w -buildid=", "-o", binary, "./cmd/nodeinit")
	command.Dir = filepath.Join(root, "e2e")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := runCommand(command); err != nil {
		return "", fmt.Errorf("build the nodes' first process: %w", err)
	}
	key, err := cache.FileKey(binary, b.early)
	if err != nil {
		return "", err
	}
	dir, err := cache.Entry(ctx, "initramfs", key, func(_ context.Context, dir string) error {
		return b.writeInitramfs(filepath.Join(dir, "initramfs"), binary)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "initramfs"), nil
}

func (b Base) writeInitramfs(path, binary string) error {
	early, err := os.ReadFile(b.early)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	archive.Write(early)
	writer := newCPIO(&archive)
	for _, dir := range []string{"dev", "proc", "sys"} {
		writer.directory(dir)
	}
	// The kernel opens the console before it runs the first process.
	writer.device("dev/console", 5, 1)
	writer.file("init", 0o755, content)
	if err := writer.close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o644)
}

// writeModules writes an archive with modules/NNN-NAME.ko, numbered in the order
// in which they are to be loaded.
func writeModules(path, dir string, modules []string) error {
	var archive bytes.Buffer
	writer := newCPIO(&archive)
	writer.directory("modules")
	for i, module := range modules {
		content, err := os.ReadFile(filepath.Join(dir, module))
		if err != nil {
			return err
		}
		writer.file(fmt.Sprintf("modules/%03d-%s", i, filepath.Base(module)), 0o644, content)
	}
	if err := writer.close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o644)
}

// cpio writes the "newc" format that the kernel unpacks.
type cpio struct {
	w     io.Writer
	inode int
	err   error
}

func newCPIO(w io.Writer) *cpio { return &cpio{w: w} }

func (c *cpio) directory(name string) { c.entry(name, 0o040755, 0, 0, nil) }

func (c *cpio) device(name string, major, minor int) { c.entry(name, 0o020600, major, minor, nil) }

func (c *cpio) file(name string, mode uint32, content []byte) {
	c.entry(name, 0o100000|mode, 0, 0, content)
}

// close writes the trailer and returns the first error.
func (c *cpio) close() error {
	c.entry("TRAILER!!!", 0, 0, 0, nil)
	return c.err
}

func (c *cpio) entry(name string, mode uint32, major, minor int, content []byte) {
	if c.err != nil {
		return
	}
	c.inode++
	const magic = "070701"
	header := fmt.Sprintf(magic+"%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	var entry bytes.Buffer
	entry.WriteString(header + name + "\x00")
	pad(&entry)
	entry.Write(content)
	pad(&entry)
	_, c.err = c.w.Write(entry.Bytes())
}

// pad fills up to a multiple of four bytes.
func pad(buffer *bytes.Buffer) {
	for buffer.Len()%4 != 0 {
		buffer.WriteByte(0)
	}
}
