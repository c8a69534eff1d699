package mounttest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Elsewhere starts a process in a mount namespace of its own. If captured, the
// mounts there stay until the process ends, at the latest with the test;
// otherwise shared mounts go with ours. It waits for the process's name, cat,
// which the kernel sets only after Start returns.
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
	waittest.Until(t, "the process has the name of its program", func() bool {
		name := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid)))(t)
		return string(name) == "cat\n"
	})
	return c.Process
}
