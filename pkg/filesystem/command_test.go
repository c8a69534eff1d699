package filesystem

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	t.Run("a tool that succeeds is no error", func(t *testing.T) {
		if err := run(t.Context(), []string{"true"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a failing tool is quoted with its exit status", func(t *testing.T) {
		err := run(t.Context(), []string{"sh", "-c", "echo to stdout; echo to stderr >&2; exit 12"})
		if code, ok := exitCode(err); !ok || code != 12 {
			t.Errorf("exit code %d, %v", code, ok)
		}
		if want := `sh: exit status 12: "to stdout to stderr"`; message(err) != want {
			t.Errorf("got %s, want %s", message(err), want)
		}
	})
	t.Run("a tool that says that the device failed makes an EIO", func(t *testing.T) {
		err := run(t.Context(), []string{"sh", "-c", "echo 'mkfs.ext4: Input/output error while writing out and closing file system' >&2; exit 1"})
		if code, ok := exitCode(err); !ok || code != 1 || !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a missing tool says so and has no exit status", func(t *testing.T) {
		err := run(t.Context(), []string{"carve-no-such-tool"})
		if _, ok := exitCode(err); ok || !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a megabyte of output neither hangs nor is kept", func(t *testing.T) {
		err := run(t.Context(), []string{"sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; exit 1"})
		var ce *CommandError
		if !errors.As(err, &ce) || len(ce.Output) != maxOutput {
			t.Errorf("kept %d bytes", len(ce.Output))
		}
	})
	t.Run("the deadline kills the tool with its children", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := run(ctx, []string{"sh", "-c", "sleep 60 & sleep 60; echo never"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took > reapDelay {
			t.Errorf("took %v: the grandchild kept the pipe open", took)
		}
	})
	t.Run("arguments are not interpreted", func(t *testing.T) {
		err := run(t.Context(), []string{"sh", "-c", `echo "$1"; exit 1`, "sh", "$(id); `id`"})
		if !strings.Contains(message(err), "$(id); `id`") {
			t.Errorf("got %v", err)
		}
	})
}
