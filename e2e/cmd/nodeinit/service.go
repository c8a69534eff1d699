package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
	"golang.org/x/sys/unix"
)

// restartDelay is how long a service that ended stays down.
const restartDelay = time.Second

// readyBound is how long a service may take until its ReadyPath exists.
const readyBound = 4 * time.Minute

// slice is the cgroup of all services, as on a machine of systemd. In the root's,
// each of their threads would weigh as much as all Pods together when the
// processors are scarce.
const slice = "/sys/fs/cgroup/system.slice"

// service is a supervised process.
type service struct {
	definition guest.Service
	stopping   chan struct{}
	stopped    chan struct{}

	mu  sync.Mutex
	pid int // 0 while it does not run
}

// start starts a service and waits until it is ready.
func (s *supervisor) start(definition guest.Service) error {
	if err := os.MkdirAll(filepath.Dir(definition.Log), 0o755); err != nil {
		return err
	}
	started := &service{definition: definition, stopping: make(chan struct{}), stopped: make(chan struct{})}
	s.mu.Lock()
	s.services = append(s.services, started)
	s.mu.Unlock()
	go started.keepRunning()
	if definition.ReadyPath == "" {
		return nil
	}
	if err := waitFor(definition.ReadyPath, readyBound); err != nil {
		return fmt.Errorf("%s is not ready: %w", definition.Name, err)
	}
	return nil
}

func (s *service) keepRunning() {
	defer close(s.stopped)
	if !s.awaitStartPath() {
		return
	}
	for {
		err := s.runOnce()
		select {
		case <-s.stopping:
			return
		default:
		}
		fmt.Printf("nodeinit: %s ended: %v\n", s.definition.Name, err)
		select {
		case <-s.stopping:
			return
		case <-time.After(restartDelay):
		}
	}
}

// awaitStartPath reports whether the service is to be started at all.
func (s *service) awaitStartPath() bool {
	for s.definition.StartPath != "" {
		if _, err := os.Stat(s.definition.StartPath); err == nil {
			return true
		}
		select {
		case <-s.stopping:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

func (s *service) runOnce() error {
	log, err := os.OpenFile(s.definition.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(s.definition.Argv[0], s.definition.Argv[1:]...)
	command.Env = append(append([]string{}, environment...), s.definition.Env...)
	command.Stdout, command.Stderr = log, log
	cgroup, err := openSlice()
	if err != nil {
		return err
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	err = command.Start()
	_ = cgroup.Close()
	if err != nil {
		return err
	}
	s.setPID(command.Process.Pid)
	err = command.Wait()
	s.setPID(0)
	return err
}

// openSlice opens the services' cgroup, and makes it share the processors with the
// Pods' by weight.
func openSlice() (*os.File, error) {
	if err := os.MkdirAll(slice, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(slice), "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
		return nil, fmt.Errorf("weigh processors by cgroups: %w", err)
	}
	return os.Open(slice)
}

func (s *service) setPID(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// stop ends the service for good, gently until the timeout.
func (s *service) stop(timeout time.Duration) {
	close(s.stopping)
	s.signal(unix.SIGTERM)
	select {
	case <-s.stopped:
	case <-time.After(timeout):
		s.signal(unix.SIGKILL)
	}
}

func (s *service) signal(signal unix.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		_ = unix.Kill(s.pid, signal)
	}
}
