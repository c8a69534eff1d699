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

// Path is where programs are looked for by those that the program starts, and
// where they are installed in Carve's images.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command is a program to run.
type Command struct {
	// Program is a path, or a name that is looked up in PATH.
	Program string
	Args    []string
	// Env is the whole environment.
	Env []string
	// Input is what the program reads from its standard input; nil is nothing.
	Input []byte
	// Holds, if set, is an open file that the program has as its standard input in place of Input,
	// such as a lock, which it has so until it is gone.
	Holds *os.File
	// MaxOutput bounds what is kept of the standard output, in bytes: the
	// beginning. MaxErrors bounds what is kept of the standard error: the
	// beginning and the end. With one of them 0, both go to the other. What is not
	// kept is read and dropped.
	MaxOutput, MaxErrors int
	// Memory bounds the program's data, in bytes; 0 is no limit. What it needs
	// beyond that it does not get, and says so (RLIMIT_DATA, getrlimit(2)).
	// prlimit(1) sets it, so no right to trace is needed.
	Memory int64
	// Abandon has Run return when the process is not gone shortly after it was
	// killed. Without it, Run waits for as long as that takes: a process that is
	// not gone may still write what it was writing.
	Abandon bool
	// Device is the path of what the program works on; empty is nothing. It implies Abandon, and while a process that was abandoned is not gone, Run
	// starts no other one for its device and returns ErrHangs.
	Device string
	// Waiting, if set, is called with true when the process has done nothing for a while, as
	// one that waits in the kernel for a device, and with false when it goes on. It is not
	// called at the same time by one Run, nor after it.
	Waiting func(bool)
}

// Result is what a program left. It is empty when the process was abandoned.
type Result struct {
	// Output and Errors are what was kept, and Truncated is true when some of
	// the output was not.
	Output    []byte
	Errors    string
	Truncated bool
	// ExitCode is -1 when the process was killed or never started.
	ExitCode int
}

// KilledError says that a command's context ended before the command did.
type KilledError struct {
	// Cause is the context's.
	Cause error
	// Stuck is true when the process is not gone: it hangs in the kernel.
	Stuck bool
	// Gone is closed once a process that is stuck is gone. Run sets it with Stuck.
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

// Run runs a command to its end, or kills it with all it started when the
// context ends. The error is nil when it succeeded, an *exec.ExitError when it
// failed, a *KilledError when it was killed, the context's cause when it was not
// started for that, ErrHangs when its device was the reason, and otherwise why it could
// not be started.
func Run(ctx context.Context, c Command) (Result, error) { return run(ctx, c, reapGrace, waitingLook) }

// run is Run with the time that a killed process has to be gone, and that between two looks at
// what a process does.
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
			// The output is still written to.
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
		return r, nil // a grandchild has the output
	default:
		return r, err
	}
}

// limited returns the program to start, below prlimit where its memory is bounded.
func (c *Command) limited() (*exec.Cmd, error) {
	if c.Memory == 0 {
		return exec.Command(c.Program, c.Args...), nil
	}
	program, err := exec.LookPath(c.Program) // prlimit would report one that is missing by an exit status
	if err != nil {
		return nil, err
	}
	return exec.Command("prlimit", append([]string{fmt.Sprintf("--data=%d", c.Memory), "--", program}, c.Args...)...), nil
}

// reapGrace is how long a killed process may take to be gone before it counts as
// stuck, and how long the pipes that a grandchild holds open are read.
const reapGrace = 2 * time.Second
