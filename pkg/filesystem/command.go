package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds what is kept of a command's output: enough for the reason
// of a failure, little enough for a log line.
const maxOutput = 4096

// reapDelay is how long to wait for the output's end after a command was
// killed: a grandchild may hold the pipe.
const reapDelay = 2 * time.Second

// wantsMemory matches what tools say when they cannot have the memory that they need:
// e2fsck and the C library of ENOMEM, xfs_repair of the limit of its option -m. "Unknown
// code ext2 70" is EXT2_ET_NO_MEMORY before e2fsck has read its messages.
var wantsMemory = regexp.MustCompile(`(?i)memory allocation failed|cannot allocate memory|out of memory|required memory for repair|[mc]alloc failed|memory exhausted|unknown code ext2 70`)

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
	// syscall.EIO when the tool says that the device failed, and ErrMemory when the tool
	// says that it could not have the memory that it needs.
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
func run(ctx context.Context, args []string) error { return runWithin(ctx, 0, args) }

// runWithin is run for a command that may have so many bytes of memory for its data; zero
// is no limit. What it needs beyond that it does not get, and says so (RLIMIT_DATA,
// getrlimit(2)).
func runWithin(ctx context.Context, memory int64, args []string) error {
	var out boundedBuffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = reapDelay
	err := cmd.Start()
	if err == nil && memory > 0 {
		// It has hardly begun. One that has ended already needs no limit.
		limit := &unix.Rlimit{Cur: uint64(memory), Max: uint64(memory)}
		if limitErr := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_DATA, limit, nil); limitErr != nil && !errors.Is(limitErr, unix.ESRCH) {
			err = fmt.Errorf("limit its memory: %w", limitErr)
			_ = cmd.Cancel()
			_ = cmd.Wait()
		}
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if strings.Contains(string(out.kept), ioError) {
		err = fmt.Errorf("%w: %w", err, syscall.EIO)
	} else if wantsMemory.Match(out.kept) {
		err = fmt.Errorf("%w: %w", err, ErrMemory)
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
