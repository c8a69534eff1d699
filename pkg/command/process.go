package command

import (
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
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = reapGrace
	p := &Process{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel goes by the thread that started the process, so that thread
		// is kept, waiting.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.gone)
		}
	}()
	return p, <-started
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
