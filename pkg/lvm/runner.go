package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

const (
	// maxStdout bounds what a report may hold; 10,000 volumes take about 8 MiB.
	maxStdout = 64 << 20
	// maxStderr bounds what is kept of messages. The rest is read and dropped.
	maxStderr = 32 << 10
	// reapGrace is how long a killed command may take to be gone before its
	// caller is let go. A process that waits for a disk that does not answer cannot be killed.
	reapGrace = 2 * time.Second
)

// Result describes one command that was run, for logs and metrics.
type Result struct {
	// Command is the subcommand, such as "lvcreate".
	Command  string
	Args     []string
	Duration time.Duration
	// Err is nil, or a *CommandError.
	Err error
}

// Runner runs the lvm program, one process per command, or one for many.
//
// A command that hangs in the kernel when it was killed at its deadline is left
// behind, and command.Stuck counts it. Runner is safe for concurrent use.
type Runner struct {
	// Binary is the lvm program; a name is looked up in PATH.
	Binary string
	// Timeout is each command's deadline, but for those that check the metadata of thin pools
	// (thin_check), on their own or before an activation. They have PoolTimeout; zero means Timeout.
	Timeout, PoolTimeout time.Duration
	// SystemDir is a directory that MakeSystemDir made, for this runner alone. NewHost requires it. Without one,
	// each command takes some 30 ms longer.
	SystemDir string
	// Lasting has RunFor keep a process for each key. It needs SystemDir, and
	// Close at the end.
	Lasting bool
	// Observe, if set, is called after each command, with the context that it was
	// given.
	Observe func(context.Context, Result)

	shells shells
}

// Run runs one subcommand and returns its standard output. On failure the
// error is a *CommandError, and the output is what there was until then.
func (r *Runner) Run(ctx context.Context, subcommand string, args ...string) ([]byte, error) {
	return r.runHolding(ctx, nil, subcommand, args...)
}

// runHolding is Run of a process that has an open file until it is gone, see command.Command.Holds.
func (r *Runner) runHolding(ctx context.Context, file *os.File, subcommand string, args ...string) ([]byte, error) {
	start := time.Now()
	out, err := r.run(ctx, file, subcommand, args)
	if r.Observe != nil {
		r.Observe(ctx, Result{Command: subcommand, Args: args, Duration: time.Since(start), Err: err})
	}
	return out, err
}

func (r *Runner) run(ctx context.Context, file *os.File, subcommand string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout(ctx))
	defer cancel()
	result, err := command.Run(ctx, command.Command{
		Program: r.Binary, Args: append([]string{subcommand}, args...), Env: commandEnv(r.SystemDir),
		Holds: file, MaxOutput: maxStdout, MaxErrors: maxStderr, Abandon: true,
	})
	var exit *exec.ExitError
	failed := &CommandError{Command: subcommand, ExitCode: -1}
	switch {
	case err == nil && result.Truncated:
		failed.ExitCode, failed.Message = 0, fmt.Sprintf("the output is larger than %d bytes", maxStdout)
		return nil, failed
	case err == nil:
		return result.Output, nil
	case errors.As(err, new(*command.KilledError)):
		failed.Message, failed.Err = withWords(err.Error(), result.Errors), blockdev.TimedOut(ctx)
		return nil, failed
	case errors.As(err, &exit):
		return result.Output, newCommandError(subcommand, exit.ExitCode(), result.Errors)
	case ctx.Err() != nil:
		failed.Message, failed.Err = "not started: "+err.Error(), blockdev.TimedOut(ctx)
	default:
		failed.Message, failed.Err = err.Error(), fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil, failed
}

// checksPool marks the context of a command that activates a thin pool.
type checksPool struct{}

// timeout is the deadline of a command.
func (r *Runner) timeout(ctx context.Context) time.Duration {
	if ctx.Value(checksPool{}) != nil {
		return cmp.Or(r.PoolTimeout, r.Timeout)
	}
	return r.Timeout
}

// withWords appends to a message what a command said, if it said something.
func withWords(message, stderr string) string {
	if words := lastWords(stderr); words != "" {
		return message + ": " + words
	}
	return message
}

// commandEnv is what a command finds in its environment.
func commandEnv(systemDir string) []string {
	return []string{
		"LC_ALL=C",
		"PATH=" + os.Getenv("PATH"),
		// Never the host's: see MakeSystemDir.
		"LVM_SYSTEM_DIR=" + systemDir,
		"LVM_SUPPRESS_FD_WARNINGS=1",
	}
}
