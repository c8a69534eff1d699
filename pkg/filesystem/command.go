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

// maxOutput bounds what is kept of a command's output: enough for the reason
// of a failure, little enough for a log line.
const maxOutput = 4096

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
	// Output is the beginning and the end of what it wrote to stdout and stderr.
	Output string
	// Err is the cause: the context's when that ended the command. It matches
	// syscall.EIO when the tool says that the device failed, and ErrMemory when the tool
	// says that it could not have the memory that it needs.
	Err error
}

// Error quotes the tool's own words.
func (e *CommandError) Error() string {
	// mkfs.xfs goes on with all of its options.
	reason, _, _ := strings.Cut(e.Output, "\nUsage:")
	out := strings.Join(strings.Fields(reason), " ")
	if out == "" {
		return fmt.Sprintf("%s: %v", e.Args[0], e.Err)
	}
	return fmt.Sprintf("%s: %v: %q", e.Args[0], e.Err, out)
}

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

// Refused reports whether a tool ran to its end and failed, for another reason than the device
// or the memory: mostly for its options.
func Refused(err error) bool {
	code, ended := exitCode(err)
	return ended && code > 0 && !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrMemory)
}

// run runs one command to its end, without input and in a fixed environment. It
// returns nil or a *CommandError. One that is killed when the context ends and is not gone then,
// because its device does not answer, keeps other commands from the device until it is.
func run(ctx context.Context, device string, args []string) error {
	return runWithin(ctx, device, CheckOptions{}, args)
}

// runWithin is run for a command with the limits of a check.
func runWithin(ctx context.Context, device string, o CheckOptions, args []string) error {
	r, err := command.Run(ctx, command.Command{
		Program: args[0], Args: args[1:], Env: []string{"PATH=" + command.Path, "LC_ALL=C"},
		// Both ends: e2fsck says of all that it corrected, and last why it failed.
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

// exitCode returns the exit status of a tool that ran to its end.
func exitCode(err error) (int, bool) {
	var ce *CommandError
	if errors.As(err, &ce) && ce.ExitCode >= 0 {
		return ce.ExitCode, true
	}
	return 0, false
}
