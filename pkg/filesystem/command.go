package filesystem

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

// maxOutput bounds the recorded output in bytes: enough for the reason, short
// enough for a log line.
const maxOutput = 4096

// wantsMemory matches messages of tools that lack memory: of e2fsck and the C
// library for ENOMEM, and of xfs_repair about its option -m. "Unknown code ext2
// 70" is EXT2_ET_NO_MEMORY before e2fsck has loaded its messages.
var wantsMemory = regexp.MustCompile(`(?i)memory allocation failed|cannot allocate memory|out of memory|required memory for repair|[mc]alloc failed|memory exhausted|unknown code ext2 70`)

// ioError is every tool's message for EIO in the C locale.
const ioError = "Input/output error"

// CommandError is the failure of a tool.
type CommandError struct {
	Args []string
	// ExitCode is the exit status, or -1 if the tool did not start or was
	// killed.
	ExitCode int
	// Output has the beginning and end of stdout and stderr.
	Output string
	// Err is the cause, from the context if that ended the command. It matches
	// syscall.EIO if the tool reports a failed device, and ErrMemory if it
	// reports a lack of memory.
	Err error
}

// Error includes the tool's output.
func (e *CommandError) Error() string {
	// mkfs.xfs appends all of its options.
	reason, _, _ := strings.Cut(e.Output, "\nUsage:")
	out := strings.Join(strings.Fields(reason), " ")
	if out == "" {
		return fmt.Sprintf("%s: %v", e.Args[0], e.Err)
	}
	return fmt.Sprintf("%s: %v: %q", e.Args[0], e.Err, out)
}

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

// Refused reports whether a tool ran to its end and failed, for a reason other
// than the device or memory. Mostly its options are the reason.
func Refused(err error) bool {
	code, ended := exitCode(err)
	return ended && code > 0 && !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrMemory)
}

// run runs a command without input and in a fixed environment. It returns nil
// or a *CommandError. A killed command that still waits for its device blocks
// other commands on the device until it exits.
func run(ctx context.Context, device string, args []string) error {
	return runWithin(ctx, device, CheckOptions{}, args)
}

func runWithin(ctx context.Context, device string, o CheckOptions, args []string) error {
	r, err := command.Run(ctx, command.Command{
		Program: args[0], Args: args[1:], Env: []string{"PATH=" + command.Path, "LC_ALL=C"},
		// Keep both ends: e2fsck lists all its corrections, and the reason of a
		// failure last.
		MaxErrors: maxOutput, Memory: o.Memory, Device: device, Waiting: o.Waiting,
	})
	var killed *command.KilledError
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case errors.Is(err, command.ErrHangs), errors.As(err, &killed) && killed.Stuck:
		err = fmt.Errorf("%w: %w", blockdev.ErrTimedOut, err)
	case cause != nil:
		err = cause
	case strings.Contains(r.Errors, ioError):
		err = fmt.Errorf("%w: %w", err, syscall.EIO)
	case wantsMemory.MatchString(r.Errors):
		err = fmt.Errorf("%w: %w", err, ErrMemory)
	}
	return &CommandError{Args: args, ExitCode: r.ExitCode, Output: r.Errors, Err: err}
}

// exitCode returns false for a tool that did not run to its end.
func exitCode(err error) (int, bool) {
	var ce *CommandError
	if errors.As(err, &ce) && ce.ExitCode >= 0 {
		return ce.ExitCode, true
	}
	return 0, false
}
