package rootfs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// xzMagic is how what xz has compressed begins.
var xzMagic = []byte("\xfd7zXZ\x00")

// unpackKernel writes the kernel proper that is in a bzImage. Unpacking itself is the
// first thing that a kernel does, and takes an emulated processor seconds.
func unpackKernel(ctx context.Context, image, output string) error {
	content, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	_, payload, ok := bytes.Cut(content, xzMagic)
	if !ok {
		return fmt.Errorf("unpack the kernel %s: it is not compressed by xz", image)
	}
	kernel, err := os.Create(output)
	if err != nil {
		return err
	}
	defer kernel.Close()
	// What follows the payload is not xz's.
	command := exec.CommandContext(ctx, "xz", "--decompress", "--single-stream", "--stdout")
	var printed bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(append(bytes.Clone(xzMagic), payload...)), kernel, &printed
	if err := command.Run(); err != nil {
		return fmt.Errorf("unpack the kernel %s: %w: %s", image, err, bytes.TrimSpace(printed.Bytes()))
	}
	return kernel.Close()
}
