package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/guest"
	"golang.org/x/sys/unix"
)

// Files in a machine's folder.
const (
	consoleLog = "console.log"
	configFile = guest.ConfigFile
	qemuLog    = "qemu.log"
)

// Machine is a running machine. Its methods may be called concurrently.
type Machine struct {
	config Config
	agent  *agent.Client
	pid    int
	ended  chan struct{}
	err    error // valid once ended is closed
}

// Start switches a machine on. It returns when its processes run; WaitReady returns when
// the machine is set up.
func Start(config Config) (*Machine, error) {
	if config.Guest.Hostname == "" {
		config.Guest.Hostname = config.Name
	}
	content, err := json.Marshal(config.Guest)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of %s: %w", config.Name, err)
	}
	if err := os.WriteFile(filepath.Join(config.Dir, configFile), content, 0o600); err != nil {
		return nil, fmt.Errorf("hand over the configuration of %s: %w", config.Name, err)
	}
	log, err := os.Create(filepath.Join(config.Dir, qemuLog))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make the agent's socket: %w", err)
	}
	defer theirs.Close()
	command, err := config.command()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("machine %s: %w", config.Name, err), ours.Close())
	}
	command.Stdout, command.Stderr = log, log
	command.ExtraFiles = []*os.File{theirs}
	if config.Accelerator == UML {
		console, err := os.Create(filepath.Join(config.Dir, consoleLog))
		if err != nil {
			return nil, errors.Join(err, ours.Close())
		}
		defer console.Close()
		command.Stdout, ours = console, newGreeted(ours)
	}
	client, err := agent.NewClient(ours)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	machine := &Machine{config: config, agent: client, ended: make(chan struct{})}
	if err := machine.launch(command); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", config.Name, err), client.Close())
	}
	return machine, nil
}

// command returns the command that is the machine.
func (c Config) command() (*exec.Cmd, error) {
	if c.Accelerator == UML {
		return c.userModeCommand()
	}
	args, err := c.arguments()
	if err != nil {
		return nil, err
	}
	return exec.Command(Binary, args...), nil
}

// launch starts the machine's process such that the kernel kills it when this process
// ends. The kernel goes by the thread that started it, so that thread is kept, waiting.
func (m *Machine) launch(command *exec.Cmd) error {
	// A session of its own keeps the user's Ctrl-C away: we decide how to stop.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // For good: the thread's processors are changed, too.
		err := m.stayOnOneProcessor()
		if err == nil {
			err = command.Start()
		}
		if err == nil {
			m.pid = command.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		m.err = command.Wait()
		_ = m.agent.Close()
		close(m.ended)
	}()
	return <-started
}

// stayOnOneProcessor has the calling thread, and what it starts, run on one of the host's
// processors where the machine is a kernel in user mode. Its processes take turns and wake
// each other; where the host is a virtual machine itself, waking another processor costs
// more than waiting for one's own.
func (m *Machine) stayOnOneProcessor() error {
	if m.config.Accelerator != UML {
		return nil
	}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("read the processors to run on: %w", err)
	}
	skip := m.config.Processor % all.Count()
	for processor := 0; ; processor++ {
		if !all.IsSet(processor) {
			continue
		}
		if skip == 0 {
			one.Set(processor)
			break
		}
		skip--
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("choose a processor to run on: %w", err)
	}
	return nil
}

// socketPair returns a connection and the file of its other end.
func socketPair() (net.Conn, *os.File, error) {
	descriptors, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(descriptors[0]), "agent")
	theirs := os.NewFile(uintptr(descriptors[1]), "agent")
	defer ours.Close()
	connection, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return connection, theirs, nil
}

// Agent runs commands inside. Requests wait for the machine to be up.
func (m *Machine) Agent() *agent.Client { return m.agent }

// PID is the process id of QEMU, or of the kernel in user mode.
func (m *Machine) PID() int { return m.pid }

// Done is closed when the machine is off.
func (m *Machine) Done() <-chan struct{} { return m.ended }

// WaitReady waits until the machine is set up and its services run. It fails at
// once when the set-up fails or the machine ends. Progress, which may be nil, is
// called when the phase changes.
func (m *Machine) WaitReady(ctx context.Context, progress func(phase string)) error {
	last := ""
	for {
		status, err := m.agent.Status(ctx)
		switch {
		case errors.Is(err, agent.ErrGone):
			<-m.ended
			return fmt.Errorf("machine %s went off while it came up: %w%s", m.config.Name, err, m.logEnds())
		case err != nil:
			return fmt.Errorf("wait for machine %s: %w%s", m.config.Name, err, m.logEnds())
		case status.Error != "":
			return fmt.Errorf("machine %s: %s", m.config.Name, status.Error)
		case status.Ready:
			return nil
		}
		if progress != nil && status.Phase != last {
			last = status.Phase
			progress(last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for machine %s, which was %s: %w", m.config.Name, status.Phase, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill cuts the power and waits for the end of the machine's processes.
func (m *Machine) Kill() {
	select {
	case <-m.ended:
	default:
		// The process is waited for above, so its id cannot be another's yet.
		_ = unix.Kill(m.pid, unix.SIGKILL)
		<-m.ended
	}
}

// PowerOff switches the machine off in good order and waits for its end; when ctx
// ends first, the power is cut and an error returned.
func (m *Machine) PowerOff(ctx context.Context) error {
	err := m.agent.PowerOff(ctx)
	if err == nil || errors.Is(err, agent.ErrGone) {
		select {
		case <-m.ended:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	m.Kill()
	return fmt.Errorf("switch off %s: the power was cut: %w", m.config.Name, err)
}

// logEnds returns the end of the logs, for errors.
func (m *Machine) logEnds() string {
	var text strings.Builder
	for _, name := range []string{qemuLog, consoleLog} {
		content, err := os.ReadFile(filepath.Join(m.config.Dir, name))
		if err != nil || len(content) == 0 {
			continue
		}
		if len(content) > 2000 {
			content = content[len(content)-2000:]
		}
		fmt.Fprintf(&text, "\n%s ends:\n%s", name, content)
	}
	return text.String()
}
