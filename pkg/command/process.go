package command

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stuck counts processes that were killed and are not gone.
var stuck atomic.Int64

// Stuck counts the processes that this one started, that were killed, and that
// are still not gone: they wait in the kernel for a device that does not answer.
func Stuck() int { return int(stuck.Load()) }

// Process is a running program. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error
}

// Start starts a program as the leader of a process group. It is killed when this
// process ends: one that went on would change what the next run does not know of.
// What it started and left holding its output is not waited for.
func Start(cmd *exec.Cmd) (*Process, error) { return start(cmd, 0) }

// start is Start of a program that may have so many bytes of memory for its data; 0 is no
// limit.
func start(cmd *exec.Cmd, memory int64) (*Process, error) {
	// A traced process stops before its program's first instruction: it has done nothing yet
	// when its memory is limited.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Ptrace: memory > 0}
	cmd.WaitDelay = reapGrace
	p := &Process{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel goes by the thread that started the process, so that thread
		// is kept, waiting.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		err := p.limit(memory)
		if err != nil {
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
		started <- err
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, <-started
}

// limit bounds the data of a process that is traced and has not begun, and has it begin. It
// runs on the thread that started the process, which is the one that traces it (ptrace(2)).
func (p *Process) limit(memory int64) error {
	if memory == 0 {
		return nil
	}
	pid := p.cmd.Process.Pid
	limit := &unix.Rlimit{Cur: uint64(memory), Max: uint64(memory)}
	// WNOWAIT, because how the process ends is for Wait.
	err := ignoringEINTR(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil) })
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_DATA, limit, nil)
	}
	if err == nil {
		err = unix.PtraceDetach(pid)
	}
	if err != nil {
		return fmt.Errorf("limit the memory of %s: %w", p.cmd.Path, err)
	}
	return nil
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Gone is closed when the process has ended and its output is read.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Err is how the process ended. It must be gone.
func (p *Process) Err() error { return p.err }

// Kill kills the process with all it started, and reports whether it is gone
// within the grace. One that is not counts as stuck until it is.
func (p *Process) Kill(grace time.Duration) (gone bool) {
	select {
	case <-p.gone:
		return true // its group may be another one's by now
	default:
	}
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	select {
	case <-p.gone:
		return true
	case <-time.After(grace):
	}
	stuck.Add(1)
	go func() {
		<-p.gone
		stuck.Add(-1)
	}()
	return false
}
