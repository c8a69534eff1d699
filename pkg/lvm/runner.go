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
	// maxStdout bounds a report; 10,000 volumes take about 8 MiB.
	maxStdout = 64 << 20
	// maxStderr bounds the messages kept; the rest is dropped.
	maxStderr = 32 << 10
	// reapGrace is how long to wait for a killed process to end. One that waits for an
	// unresponsive disk cannot be killed.
	reapGrace = 2 * time.Second
)

// Result describes a finished command, for logs and metrics.
type Result struct {
	Command  string
	Args     []string
	Duration time.Duration
	// Err is nil, or a *CommandError.
	Err error
}

// Runner runs the lvm program. It leaves behind a command that hangs in the kernel after its
// deadline, see command.Stuck. Runner is safe for concurrent use.
type Runner struct {
	Binary string
	// Timeout is each command's deadline. Commands that check the metadata of thin pools
	// (thin_check), alone or before an activation, have PoolTimeout; zero means Timeout.
	Timeout, PoolTimeout time.Duration
	// SystemDir comes from MakeSystemDir and belongs to this runner alone. NewHost requires it.
	// Without it, each command takes about 30 ms longer.
	SystemDir string
	// Lasting makes RunFor keep a process per key. It needs SystemDir, and Close at the end.
	Lasting bool
	// Observe, unless nil, is called after each command with the command's context.
	Observe func(context.Context, Result)

	shells shells
}

// Run runs a subcommand and returns its standard output, also if it exits with an error. Errors
// are of type *CommandError.
func (r *Runner) Run(ctx context.Context, subcommand string, args ...string) ([]byte, error) {
	return r.runHolding(ctx, nil, subcommand, args...)
}

// runHolding keeps file, which may be nil, open in the process, see command.Command.Holds.
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

type checksPool struct{}

func (r *Runner) timeout(ctx context.Context) time.Duration {
	if ctx.Value(checksPool{}) != nil {
		return cmp.Or(r.PoolTimeout, r.Timeout)
	}
	return r.Timeout
}

func withWords(message, stderr string) string {
	if words := lastWords(stderr); words != "" {
		return message + ": " + words
	}
	return message
}

func commandEnv(systemDir string) []string {
	return []string{
		"LC_ALL=C",
		"PATH=" + os.Getenv("PATH"),
		"LVM_SYSTEM_DIR=" + systemDir,
		"LVM_SUPPRESS_FD_WARNINGS=1",
	}
}
