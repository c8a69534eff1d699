package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startTimeout bounds the time from a component's start to its health.
	startTimeout = 2 * time.Minute
	// stopTimeout is how long a component may take to end by itself. The API server
	// waits for requests in flight.
	stopTimeout = 15 * time.Second
	// pollInterval is the time between two looks at a component.
	pollInterval = 50 * time.Millisecond
	// logLines is how much of a component's log an error shows.
	logLines = 15
)

// StartComponent starts the component called name (one of the applets of package kube
// that are components) if it does not run, and returns when it is healthy.
func (c *ControlPlane) StartComponent(ctx context.Context, name string) error {
	definition, ok := c.definitions()[name]
	if !ok {
		return fmt.Errorf("start %q: there is no such component of the control plane", name)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pids, err := c.find(name)
	if err != nil {
		return err
	}
	var ended <-chan error
	if len(pids) == 0 {
		fmt.Fprintf(c.progress, "starting %s\n", name)
		if ended, err = c.launch(name, definition.arguments); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	if err := c.waitHealthy(ctx, definition.health, ended); err != nil {
		return fmt.Errorf("start %s: %w\nthe end of %s:\n%s", name, err, c.LogFile(name), c.logTail(name))
	}
	return nil
}

// StopComponent ends the component called name and returns when it is gone; its port is
// free then. It is no error if it does not run.
func (c *ControlPlane) StopComponent(ctx context.Context, name string) error {
	running, err := c.pin(name)
	if err != nil {
		return err
	}
	defer running.release()
	if err := running.signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	polite, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := running.wait(polite); err == nil || ctx.Err() != nil {
		return waited(name, err)
	}
	return kill(ctx, name, running)
}

// KillComponent ends the component called name as a crash would and returns when it is
// gone. It is no error if it does not run.
func (c *ControlPlane) KillComponent(ctx context.Context, name string) error {
	running, err := c.pin(name)
	if err != nil {
		return err
	}
	defer running.release()
	return kill(ctx, name, running)
}

func kill(ctx context.Context, name string, running processes) error {
	if err := running.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return waited(name, running.wait(ctx))
}

func waited(name string, err error) error {
	if err != nil {
		return fmt.Errorf("wait for the end of %s: %w", name, err)
	}
	return nil
}

// Running reports whether the component called name runs, healthy or not.
func (c *ControlPlane) Running(name string) (bool, error) {
	pids, err := c.find(name)
	return len(pids) > 0, err
}

// Processes returns the ids of the processes of the component called name: one, or none
// if it does not run.
func (c *ControlPlane) Processes(name string) ([]int, error) { return c.find(name) }

// LogFile returns the path of the log of the component called name. Every start appends
// to it.
func (c *ControlPlane) LogFile(name string) string {
	return filepath.Join(c.dir, logFolder, name+".log")
}

// launch starts a component, detached from the caller's session and terminal. The
// returned channel gets how it ended, if that is while the caller still runs.
func (c *ControlPlane) launch(name string, arguments []string) (<-chan error, error) {
	log, err := os.OpenFile(c.LogFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	command := &exec.Cmd{
		Path:   c.kube,
		Args:   append([]string{name}, arguments...),
		Dir:    c.dir,
		Env:    []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Stdout: log,
		Stderr: log,
		// A session of its own: no terminal's hang-up or interrupt reaches it.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := c.namespace.Start(command); err != nil {
		return nil, err
	}
	// What starts a process must wait for it, or it stays as a zombie. The goroutine
	// runs as long as the component does, or this program.
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	return ended, nil
}

// PrintEnded prints the end of the log of each component that has ended.
func (c *ControlPlane) PrintEnded(out io.Writer) {
	for name := range c.definitions() {
		if running, err := c.Running(name); err != nil || !running {
			fmt.Fprintf(out, "%s has ended (%v); its log ends:\n%s\n", name, err, c.logTail(name))
		}
	}
}

// logTail returns the last lines of the log of the component called name.
func (c *ControlPlane) logTail(name string) []byte {
	content, err := os.ReadFile(c.LogFile(name))
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	if len(lines) > logLines {
		lines = lines[len(lines)-logLines:]
	}
	return bytes.Join(lines, []byte("\n"))
}
