package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Path is the PATH of programs in Carve's images, for their children too.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command is a program to run.
type Command struct {
	// Program is a path, or a name to look up in PATH.
	Program string
	Args    []string
	// Env is the whole environment.
	Env   []string
	Input []byte
	// Holds, unless nil, replaces Input as the standard input. The process has the file, such
	// as a lock, open until it is gone.
	Holds *os.File
	// MaxOutput bounds the kept beginning of standard output, MaxErrors the kept beginning and
	// end of standard error, in bytes. If one is 0, both streams go to the other. Run drops the
	// rest.
	MaxOutput, MaxErrors int
	// Memory bounds the program's data, in bytes; 0 means no limit. Allocations beyond it fail
	// in the program (RLIMIT_DATA, getrlimit(2)). prlimit(1) sets it, so Carve needs no right
	// to trace.
	Memory int64
	// Abandon makes Run return if the process is not gone shortly after it was killed.
	// Otherwise Run waits until it is gone, as it may still be writing.
	Abandon bool
	// Device is the path of the device that the program works on, or empty. It implies Abandon.
	// Until an abandoned process is gone, Run starts no other one for its device and returns
	// ErrHangs.
	Device string
	// Waiting, unless nil, is called with true when the process has done nothing for a while,
	// as if waiting in the kernel for a device, and with false when it goes on. One Run makes
	// these calls one at a time and none after it returns.
	Waiting func(bool)
}

// Result is the result of a program. It is empty if Run abandoned the process.
type Result struct {
	// Truncated means that output was dropped.
	Output    []byte
	Errors    string
	Truncated bool
	// ExitCode is -1 if the process was killed or never started.
	ExitCode int
}

// KilledError means that a command's context ended before the command did.
type KilledError struct {
	Cause error
	// Stuck means that the process hangs in the kernel.
	Stuck bool
	// Gone is closed when a stuck process is gone. Run sets it with Stuck.
	Gone <-chan struct{}
}

func (e *KilledError) Error() string {
	if e.Stuck {
		return fmt.Sprintf("killed, but it hangs in the kernel: %v", e.Cause)
	}
	return fmt.Sprintf("killed: %v", e.Cause)
}

// Unwrap returns the cause.
func (e *KilledError) Unwrap() error { return e.Cause }

// Run runs a command to its end, or kills it with its process group when the context ends. The
// error is nil on success, an *exec.ExitError if the command failed, and a *KilledError if Run
// killed it. If Run did not start the command, it is the context's cause, ErrHangs, or the
// reason that it could not start.
func Run(ctx context.Context, c Command) (Result, error) { return run(ctx, c, reapGrace, waitingLook) }

func run(ctx context.Context, c Command, grace, look time.Duration) (Result, error) {
	if ctx.Err() != nil {
		return Result{ExitCode: -1}, context.Cause(ctx)
	}
	if err := Hangs(c.Device); err != nil {
		return Result{ExitCode: -1}, err
	}
	output, errs := &headBuffer{limit: c.MaxOutput}, &Words{Limit: c.MaxErrors}
	cmd, err := c.limited()
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	cmd.Env = c.Env
	if c.Input != nil {
		cmd.Stdin = bytes.NewReader(c.Input)
	}
	if c.Holds != nil {
		cmd.Stdin = c.Holds
	}
	cmd.Stdout, cmd.Stderr = output, errs
	switch {
	case c.MaxErrors == 0:
		cmd.Stderr = output
	case c.MaxOutput == 0:
		cmd.Stdout = errs
	}
	p, err := Start(cmd)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	if c.Waiting != nil {
		defer p.watch(look, c.Waiting)()
	}
	var killed *KilledError
	select {
	case <-p.Gone():
	case <-ctx.Done():
		killed = &KilledError{Cause: context.Cause(ctx)}
		if killed.Stuck = !p.Kill(grace); killed.Stuck && (c.Abandon || c.Device != "") {
			hanging.add(c.Device, p)
			killed.Gone = p.Gone()
			// The process may still write the output.
			return Result{ExitCode: -1}, killed
		}
		<-p.Gone()
		killed.Stuck = false
	}
	r := Result{Output: output.kept, Errors: errs.String(), Truncated: output.truncated, ExitCode: cmd.ProcessState.ExitCode()}
	switch err := p.Err(); {
	case err == nil:
		return r, nil // it ended by itself
	case killed != nil:
		return r, killed
	case errors.Is(err, exec.ErrWaitDelay) && r.ExitCode == 0:
		return r, nil // a grandchild holds the output open
	default:
		return r, err
	}
}

func (c *Command) limited() (*exec.Cmd, error) {
	if c.Memory == 0 {
		return exec.Command(c.Program, c.Args...), nil
	}
	program, err := exec.LookPath(c.Program) // prlimit would report a missing one by an exit status
	if err != nil {
		return nil, err
	}
	return exec.Command("prlimit", append([]string{fmt.Sprintf("--data=%d", c.Memory), "--", program}, c.Args...)...), nil
}

// reapGrace is how long a killed process may take to be gone before it counts as stuck, and how
// long Run reads pipes that a grandchild holds open.
const reapGrace = 2 * time.Second
