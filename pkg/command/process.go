package command

import (
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var stuck atomic.Int64

// Stuck counts the killed processes of this program that still wait in the kernel for an
// unresponsive device.
func Stuck() int { return int(stuck.Load()) }

// Process is a running program. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error
}

// Start starts a program as the leader of a process group. The kernel kills it when this
// process ends: otherwise it would make changes that the next run does not know of. Nothing
// waits for a descendant that holds the output open.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = reapGrace
	p := &Process{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel kills the process when the thread that started it ends, so keep that
		// thread.
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

// Err returns how the process ended. Call it only after Gone is closed.
func (p *Process) Err() error { return p.err }

// Kill kills the process group, and reports whether the process is gone within the grace. If
// not, it counts as stuck until it is.
func (p *Process) Kill(grace time.Duration) (gone bool) {
	select {
	case <-p.gone:
		return true // its group ID may belong to another by now
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
