package mounttest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// Elsewhere starts a process in a mount namespace of its own. What is mounted where
// it starts goes with ours when that is shared or, if it is captured, stays until
// the process ends, at the test's end at the latest.
func Elsewhere(t testing.TB, captured bool) *os.Process {
	t.Helper()
	c := exec.Command("cat")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if captured {
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	stop := must.Get(c.StdinPipe())(t)
	must.Succeed(t, c.Start())
	t.Cleanup(func() { _, _ = stop.Close(), c.Wait() })
	return c.Process
}
