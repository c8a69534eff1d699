package filesystem

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/waittest"
)

func TestRun(t *testing.T) {
	t.Run("a tool that succeeds is no error", func(t *testing.T) {
		if err := run(t.Context(), "", []string{"true"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a failing tool is quoted with its exit status", func(t *testing.T) {
		err := run(t.Context(), "", []string{"sh", "-c", "echo to stdout; echo to stderr >&2; exit 12"})
		if code, ok := exitCode(err); !ok || code != 12 {
			t.Errorf("exit code %d, %v", code, ok)
		}
		if want := `sh: exit status 12: "to stdout to stderr"`; message(err) != want {
			t.Errorf("got %s, want %s", message(err), want)
		}
	})
	t.Run("a tool that says that the device failed makes an EIO", func(t *testing.T) {
		err := run(t.Context(), "", []string{"sh", "-c", "echo 'mkfs.ext4: Input/output error while writing out and closing file system' >&2; exit 1"})
		if code, ok := exitCode(err); !ok || code != 1 || !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a tool that takes more memory than it may have fails with ErrMemory", func(t *testing.T) {
		// The limit arrives a moment after the tool has started.
		const allocate = `until [ "$(ulimit -d)" != unlimited ]; do sleep 0.01; done; exec dd if=/dev/zero of=/dev/null count=1 bs=`
		if err := runWithin(t.Context(), "", CheckOptions{Memory: 64 << 20}, []string{"sh", "-c", allocate + "1M"}); err != nil {
			t.Errorf("it takes 1 MiB of 64: %v", err)
		}
		err := runWithin(t.Context(), "", CheckOptions{Memory: 64 << 20}, []string{"sh", "-c", allocate + "100M"})
		if code, ok := exitCode(err); !ok || code != 1 || !errors.Is(err, ErrMemory) {
			t.Errorf("it takes 100 MiB of 64: got %v, want exit status 1 and %v", err, ErrMemory)
		}
	})
	t.Run("what a tool says last counts, whatever it said before", func(t *testing.T) {
		// e2fsck names each inode that it frees before its first pass.
		const repair = `for i in $(seq 100); do echo "/dev/dm-1: Clearing orphaned inode $i (uid=999, gid=999, mode=0100600, size=16777216)"; done; echo "$1"; exit 8`
		for last, want := range map[string]error{
			"/dev/dm-1: Error allocating inode bitmap (1): Memory allocation failed": ErrMemory,
			"/dev/dm-1: Input/output error while reading block 7":                    syscall.EIO,
		} {
			err := run(t.Context(), "", []string{"sh", "-c", repair, "sh", last})
			if !errors.Is(err, want) || !strings.Contains(message(err), last) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
	})
	t.Run("a missing tool says so and has no exit status", func(t *testing.T) {
		err := run(t.Context(), "", []string{"carve-no-such-tool"})
		if _, ok := exitCode(err); ok || !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a megabyte of output neither hangs nor is kept", func(t *testing.T) {
		err := run(t.Context(), "", []string{"sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; exit 1"})
		var ce *CommandError
		if !errors.As(err, &ce) || strings.Count(ce.Output, "x") != maxOutput {
			t.Errorf("kept %d bytes", len(ce.Output))
		}
	})
	t.Run("the context's end kills the tool with its children", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		file := filepath.Join(t.TempDir(), "pid")
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, "", []string{"sh", "-c", `sleep 3600 & echo $! > "$1.part"; mv "$1.part" "$1"; sleep 3600; echo never`, "sh", file})
		}()
		var child string
		waittest.Succeeds(t, "the tool has a child", func() error {
			text, err := os.ReadFile(file)
			child = strings.TrimSpace(string(text))
			return err
		})
		t.Cleanup(func() {
			if pid, err := strconv.Atoi(child); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may still run
			}
		})
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || strings.Contains(message(err), "never") {
			t.Errorf("got %v", err)
		}
		waittest.Until(t, "the child has ended", func() bool { // it may be a zombie until init reaps it
			status, err := os.ReadFile("/proc/" + child + "/stat")
			return err != nil || strings.Contains(string(status), ") Z ")
		})
	})
	t.Run("a deadline is an error of its own", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := run(ctx, "", []string{"sleep", "3600"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("arguments are not interpreted", func(t *testing.T) {
		err := run(t.Context(), "", []string{"sh", "-c", `echo "$1"; exit 1`, "sh", "$(id); `id`"})
		if !strings.Contains(message(err), "$(id); `id`") {
			t.Errorf("got %v", err)
		}
	})
}
