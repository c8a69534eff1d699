package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds what is kept of a command's output: enough for the reason
// of a failure, little enough for a log line.
const maxOutput = 4096

// reapDelay is how long to wait for the output's end after a command was
// killed: a grandchild may hold the pipe.
const reapDelay = 2 * time.Second

// ioError is what every tool says of EIO in the C locale.
const ioError = "Input/output error"

// CommandError says that a tool failed.
type CommandError struct {
	// Args is the command line, the tool's name first.
	Args []string
	// ExitCode is the tool's exit status, or -1 when it did not start or was
	// killed.
	ExitCode int
	// Output is the beginning of what it wrote to stdout and stderr.
	Output string
	// Err is the cause: the context's when that ended the command. It matches
	// syscall.EIO when the tool says that the device failed.
	Err error
}

// Error quotes the tool's own words.
func (e *CommandError) Error() string {
	out := strings.Join(strings.Fields(e.Output), " ")
	if out == "" {
		return fmt.Sprintf("%s: %v", e.Args[0], e.Err)
	}
	return fmt.Sprintf("%s: %v: %q", e.Args[0], e.Err, out)
}

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

// run runs one command to its end. It returns nil or a *CommandError. The
// command gets its own process group, which is killed as a whole when the
// context ends, no input and a fixed environment.
func run(ctx context.Context, args []string) error {
	var out boundedBuffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = reapDelay
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if strings.Contains(string(out.kept), ioError) {
		err = fmt.Errorf("%w: %w", err, syscall.EIO)
	}
	return &CommandError{Args: args, ExitCode: cmd.ProcessState.ExitCode(), Output: string(out.kept), Err: err}
}

// exitCode returns the exit status of a tool that ran to its end.
func exitCode(err error) (int, bool) {
	var ce *CommandError
	if errors.As(err, &ce) && ce.ExitCode >= 0 {
		return ce.ExitCode, true
	}
	return 0, false
}

// boundedBuffer keeps the first maxOutput bytes and swallows the rest, so that
// a talkative tool neither blocks nor fills memory. os/exec writes to it from
// one goroutine when stdout and stderr are the same writer.
type boundedBuffer struct{ kept []byte }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if room := maxOutput - len(b.kept); room > 0 {
		b.kept = append(b.kept, p[:min(room, len(p))]...)
	}
	return len(p), nil
}
