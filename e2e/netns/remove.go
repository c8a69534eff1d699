package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// politePeriod is how long the processes of a namespace have to end by themselves
	// when it is removed. Whatever has data to save is stopped in order before that.
	politePeriod = 3 * time.Second
	// pollInterval is the time between two looks at who is still there.
	pollInterval = 50 * time.Millisecond
)

// Remove ends every process in the namespace called name, with SIGTERM and a little
// later with SIGKILL, and removes it with its interfaces. It is no error if there is no
// such namespace. It touches no process outside the namespace, and not the caller even
// if it is inside.
func Remove(ctx context.Context, name string) error {
	n, err := Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return removeFile(filepath.Join(folder, name))
	}
	if err != nil {
		return err
	}
	if err := n.endProcesses(ctx); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("remove network namespace %s: unmount: %w", name, err)
	}
	return removeFile(n.Path())
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

func (n Namespace) endProcesses(ctx context.Context) error {
	deadline := time.Now().Add(politePeriod)
	signalled := make(map[int]bool)
	for {
		sig := unix.SIGTERM
		if time.Now().After(deadline) {
			sig = unix.SIGKILL
			clear(signalled)
		}
		left, err := n.signal(sig, signalled)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes are still in it: %w", left, context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

// signal sends sig to those processes of the namespace that are not in signalled, adds
// them to it and returns how many processes there are.
func (n Namespace) signal(sig unix.Signal, signalled map[int]bool) (int, error) {
	pids, err := n.Processes()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if signalled[pid] {
			continue
		}
		signalled[pid] = true
		if err := n.signalMember(pid, sig); err != nil {
			return 0, err
		}
	}
	return len(pids), nil
}

// signalMember sends sig to the process pid if it is in the namespace. The process is
// pinned before it is looked at, so that a process that took over the id of one that
// just ended is never hit.
func (n Namespace) signalMember(pid int, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pin process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	inside, err := n.contains(pid)
	if err != nil || !inside {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// Processes returns the ids of the processes in the namespace, without the caller's
// own and without those that have ended but were not waited for.
func (n Namespace) Processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		inside, err := n.contains(pid)
		if err != nil {
			return nil, err
		}
		if inside {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// contains compares the identity of the namespace with that of the process'. A process
// that has ended, waited for or not, is in none.
func (n Namespace) contains(pid int) (bool, error) {
	var own, its unix.Stat_t
	if err := unix.Stat(n.Path(), &own); err != nil {
		return false, fmt.Errorf("look at %s: %w", n.Path(), err)
	}
	err := unix.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns", "net"), &its)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EACCES):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at the network namespace of process %d: %w", pid, err)
	}
	return own.Dev == its.Dev && own.Ino == its.Ino, nil
}
