package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxStdout bounds what a report may hold; 10,000 volumes take about 8 MiB.
	maxStdout = 64 << 20
	// maxStderr bounds what is kept of complaints. The rest is read and dropped.
	maxStderr = 32 << 10
	// reapGrace is how long a killed command may take to be gone before its
	// caller is let go. A process that waits for a dead disk cannot be killed.
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
// Each process leads its own process group, which is killed as a whole at the
// deadline. Output is read to its end whatever its size, and kept within
// bounds. Runner is safe for concurrent use.
type Runner struct {
	// Binary is the lvm program; a name is looked up in PATH.
	Binary string
	// Timeout is each command's deadline.
	Timeout time.Duration
	// SystemDir is a directory that MakeSystemDir made. Empty works, too, but
	// each command then takes some 30 ms longer.
	SystemDir string
	// Lasting has RunFor keep a process for each key. It needs SystemDir, and
	// Close at the end.
	Lasting bool
	// Observe, if set, is called after each command, with the context that it was
	// given.
	Observe func(context.Context, Result)

	stuck  atomic.Int64
	shells shells
}

// Stuck counts commands that were killed and are still not gone: they wait in
// the kernel for a device that does not answer.
func (r *Runner) Stuck() int { return int(r.stuck.Load()) }

// Run runs one subcommand and returns its standard output. On failure the
// error is a *CommandError, and the output is what there was until then.
func (r *Runner) Run(ctx context.Context, command string, args ...string) ([]byte, error) {
	start := time.Now()
	out, err := r.run(ctx, command, args)
	if r.Observe != nil {
		r.Observe(ctx, Result{Command: command, Args: args, Duration: time.Since(start), Err: err})
	}
	return out, err
}

func (r *Runner) run(ctx context.Context, command string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()

	stdout := &headBuffer{limit: maxStdout}
	stderr := &headTailBuffer{limit: maxStderr}
	cmd := exec.Command(r.Binary, append([]string{command}, args...)...)
	cmd.Env = commandEnv(r.SystemDir)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A command must not go on when its lvmd was killed: the next one would not
	// know of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Bounds the wait for pipes that a grandchild holds open.
	cmd.WaitDelay = reapGrace
	if err := ctx.Err(); err != nil {
		return nil, &CommandError{Command: command, ExitCode: -1, Message: "not started: " + err.Error(), Err: timedOut(err)}
	}
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel goes by the thread that started the process, so that thread
		// is kept, waiting.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		done <- cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, &CommandError{Command: command, ExitCode: -1, Message: err.Error(), Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	select {
	case err := <-done:
		return finish(command, stdout, stderr, err)
	case <-ctx.Done():
	}
	// The process may have ended by itself in this very moment: its group is
	// then gone and the signal goes nowhere.
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	kill := &CommandError{Command: command, ExitCode: -1, Err: timedOut(ctx.Err())}
	select {
	case ended := <-done:
		kill.Message = fmt.Sprintf("killed: %v (%v)", ctx.Err(), ended)
		if words := lastWords(stderr.String()); words != "" {
			kill.Message += ": " + words
		}
	case <-time.After(reapGrace):
		r.stuck.Add(1)
		go func() {
			<-done //nolint:errcheck // What it says was given up.
			r.stuck.Add(-1)
		}()
		// Wait still writes to the buffers: they must not be read.
		kill.Message = fmt.Sprintf("killed, but it hangs in the kernel: %v", ctx.Err())
	}
	return nil, kill
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

// finish turns the end of a process into a result.
func finish(command string, stdout *headBuffer, stderr *headTailBuffer, err error) ([]byte, error) {
	var exit *exec.ExitError
	switch {
	case err == nil && stdout.truncated:
		return nil, &CommandError{Command: command, ExitCode: 0, Message: fmt.Sprintf("the output is larger than %d bytes", maxStdout)}
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return stdout.Bytes(), nil
	case errors.As(err, &exit):
		return stdout.Bytes(), newCommandError(command, exit.ExitCode(), stderr.String())
	default:
		return stdout.Bytes(), &CommandError{Command: command, ExitCode: -1, Message: err.Error(), Err: err}
	}
}

// timedOut keeps a cancellation apart from a deadline.
func timedOut(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrTimedOut
	}
	return fmt.Errorf("%w: %w", ErrTimedOut, err)
}
