package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/host"
)

// machineBound bounds the time until a machine has set itself up, on a busy host.
const machineBound = 5 * time.Minute

// pollInterval is the time between two looks at something that happens by itself.
const pollInterval = 100 * time.Millisecond

// upMachine switches a node's machine on if it is off, making its disks if it has
// none, and returns when the machine is set up.
func (c *Cluster) upMachine(ctx context.Context, n node, a assets, hostBinary string) error {
	running, err := c.running(n)
	if err != nil {
		return err
	}
	if running {
		// A machine whose set-up failed will not come up by waiting.
		if status, err := c.client(n).Status(ctx); err == nil && status.Error != "" {
			c.progress.say("switching %s off and on: %s", n.name(), status.Error)
			if err := c.killMachine(ctx, n); err != nil {
				return err
			}
			running = false
		}
	}
	if !running {
		if err := c.makeDisks(ctx, n, a); err != nil {
			return fmt.Errorf("make the disks of %s: %w", n.name(), err)
		}
		content, err := json.MarshalIndent(n.machine(a), "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.dir, machineFile), content, 0o600); err != nil {
			return err
		}
		if err := c.launch(n, hostBinary); err != nil {
			return err
		}
	}
	return c.waitMachine(ctx, n)
}

// makeDisks makes those of the node's disks that are missing. A disk appears by
// rename, so one that is there is whole.
func (c *Cluster) makeDisks(ctx context.Context, n node, a assets) error {
	for _, dir := range []string{n.dir, n.images()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	sparse := func(path string) error { return vm.MakeSparse(path, diskSize) }
	for name, fill := range map[string]func(path string) error{
		"vdb.img": sparse, "vdc.img": sparse,
		stateDisk: func(path string) error { return copySparse(ctx, a.state, path) },
	} {
		path := filepath.Join(n.dir, name)
		if _, err := os.Stat(path); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		partial := path + ".partial"
		if err := os.RemoveAll(partial); err != nil {
			return err
		}
		if err := fill(partial); err != nil {
			return err
		}
		if err := os.Rename(partial, path); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the process that is the node's machine.
func (c *Cluster) launch(n node, hostBinary string) error {
	if err := c.namespace.AddTap(n.tap()); err != nil {
		return err
	}
	if err := c.namespace.SetRoute(n.podSubnet(), n.address()); err != nil {
		return err
	}
	if n.number == 1 {
		// The proxy on this machine changes where it goes; what it does not know comes back.
		if err := c.namespace.SetRoute(netip.MustParsePrefix(controlplane.ServiceSubnet), n.address()); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(n.dir, hostLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := &exec.Cmd{
		Path: hostBinary, Args: []string{hostProgram, filepath.Join(n.dir, machineFile)}, Dir: n.dir,
		Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := c.namespace.Start(command); err != nil {
		return fmt.Errorf("start %s: %w", n.name(), err)
	}
	// What starts a process must wait for it, or it stays as a zombie.
	go func() { _ = command.Wait() }()
	return nil
}

// client returns a client of the agent in the node's machine. It dials for every
// request, so it also reaches the machine that runs after a restart of the node.
func (c *Cluster) client(n node) *agent.Client {
	return agent.NewDialer(func(ctx context.Context) (connection net.Conn, err error) {
		err = c.namespace.Do(func() (err error) {
			connection, err = new(net.Dialer).DialContext(ctx, "unix", host.Socket(n.name()))
			return err
		})
		return connection, err
	})
}

// looksUntilGone is how many looks in a row must find no process before the
// machine counts as off. One is not enough: a process that was just started shows
// no command line for a moment, between the exec that its starter waits for and
// the kernel's laying out of its arguments.
const looksUntilGone = 20

// waitMachine waits until the machine is set up.
func (c *Cluster) waitMachine(ctx context.Context, n node) error {
	ctx, cancel := context.WithTimeout(ctx, machineBound)
	defer cancel()
	missed := 0
	for {
		status, err := c.client(n).Status(ctx)
		switch {
		case err == nil && status.Error != "":
			return fmt.Errorf("node %s: %s", n.name(), status.Error)
		case err == nil && status.Ready:
			c.progress.say("%s has booted", n.name())
			return nil
		case err != nil:
			// The process may not listen yet, or may have ended.
			running, findErr := c.running(n)
			if findErr != nil {
				return fmt.Errorf("look for the machine of node %s: %w", n.name(), findErr)
			}
			missed++
			if running {
				missed = 0
			}
			if missed == looksUntilGone {
				return fmt.Errorf("node %s went off: %w%s", n.name(), err, c.logEnds(n))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for node %s, which was %q: %w", n.name(), status.Phase, errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

// logEnds returns the ends of the logs of the node's machine.
func (c *Cluster) logEnds(n node) string {
	var text strings.Builder
	for _, name := range []string{hostLog, "qemu.log", "console.log"} {
		content, err := os.ReadFile(filepath.Join(n.dir, name))
		if err != nil || len(content) == 0 {
			continue
		}
		if len(content) > 1500 {
			content = content[len(content)-1500:]
		}
		fmt.Fprintf(&text, "\n%s ends:\n%s", name, bytes.TrimSpace(content))
	}
	return text.String()
}

// processes finds the processes of the node's machine: the host's process and QEMU.
func (c *Cluster) processes(n node) ([]int, error) {
	all, err := c.namespace.Processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, pid := range all {
		if n.owns(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// owns reports, by a process' command line, whether it is of the node's machine.
func (n node) owns(pid int) bool {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false // It has ended.
	}
	arguments := strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
	if arguments[0] == hostProgram {
		return len(arguments) == 2 && arguments[1] == filepath.Join(n.dir, machineFile)
	}
	return vm.IsMachine(arguments, n.name(), n.dir)
}

func (c *Cluster) running(n node) (bool, error) {
	pids, err := c.processes(n)
	return len(pids) > 0, err
}

// killMachine cuts the node's power and returns when its processes are gone.
func (c *Cluster) killMachine(ctx context.Context, n node) error {
	for {
		pids, err := c.processes(n)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killOwned(n, pid); err != nil {
				return fmt.Errorf("cut the power of %s: %w", n.name(), err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cut the power of %s: %w", n.name(), ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// killOwned kills the process once it is pinned and seen to be the node's still.
func killOwned(n node, pid int) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()
	if !n.owns(pid) {
		return nil
	}
	if err := process.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
