package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// processes are processes of a component. Each is pinned by a file descriptor (pidfd_open(2)), so
// that a process that takes over the id of one that ended is never hit, nor waited for.
type processes []int

// pin returns the processes of the component called name. Those that are ending already have no
// name and are not found.
func (c *ControlPlane) pin(name string) (processes, error) {
	pids, err := c.find(name)
	if err != nil {
		return nil, err
	}
	var pinned processes
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			pinned.release()
			return nil, fmt.Errorf("pin process %d: %w", pid, err)
		}
		// Another process may have had the id by the time it was pinned.
		if processName(pid) != name {
			_ = unix.Close(fd)
			continue
		}
		pinned = append(pinned, fd)
	}
	return pinned, nil
}

func (p processes) release() {
	for _, fd := range p {
		_ = unix.Close(fd) // Only frees the pin.
	}
}

func (p processes) signal(sig unix.Signal) error {
	for _, fd := range p {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// wait returns when all have ended with all their threads, and so have closed their files and
// sockets. /proc would say so too early: a process loses its memory, and its name with it, before it
// closes them.
func (p processes) wait(ctx context.Context) error {
	for _, fd := range p {
		for {
			// A pidfd is readable once the process has ended.
			polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(polled, 0)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("ask whether it has ended: %w", err)
			}
			if n > 0 {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

// find returns the processes of the component called name.
func (c *ControlPlane) find(name string) ([]int, error) {
	all, err := c.namespace.Processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, pid := range all {
		if processName(pid) == name {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// processName returns the name under which a process was called, or nothing if it is gone or has
// begun to end.
func processName(pid int) string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	name, _, _ := bytes.Cut(line, []byte{0})
	return string(name)
}
