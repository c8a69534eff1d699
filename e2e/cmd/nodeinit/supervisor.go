package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/guest"
	"golang.org/x/sys/unix"
)

// environment is that of all steps, services and commands.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "TERM=xterm", "LANG=C.UTF-8",
}

// supervisor sets the machine up, keeps its services running and switches it off.
type supervisor struct {
	mu       sync.Mutex
	status   guest.Status
	services []*service
	off      sync.Once
}

func newSupervisor() *supervisor {
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		// So that commands are found in this PATH, too.
		_ = os.Setenv(name, value)
	}
	return &supervisor{}
}

// run never returns.
func (s *supervisor) run() {
	s.phase("starting the agent")
	line, err := readCommandLine()
	go s.serveAgent(line)
	if err == nil {
		err = s.setUp(line)
	}
	if err != nil {
		fmt.Printf("nodeinit: %v\n", err)
		s.mu.Lock()
		s.status.Error = err.Error()
		s.mu.Unlock()
	}
	select {}
}

func (s *supervisor) phase(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Phase = phase
}

func (s *supervisor) report() guest.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) == nil {
		status.UptimeSeconds = time.Duration(now.Nano()).Seconds()
	}
	return status
}

// serveAgent serves the serial port as long as the machine is on.
func (s *supervisor) serveAgent(line commandLine) {
	server := &agent.Server{Status: s.report, PowerOff: s.powerOff, Environment: environment}
	open := func() (*os.File, error) { return openPort(guest.AgentPort) }
	if line.userMode() {
		open = func() (*os.File, error) { return openTerminal(guest.AgentTerminal) }
	}
	for {
		port, err := open()
		if err == nil {
			err = server.Serve(port)
			_ = port.Close()
		}
		fmt.Printf("nodeinit: %v\n", err)
		time.Sleep(200 * time.Millisecond)
	}
}

// openPort opens the virtio serial port that QEMU gave that name.
func openPort(name string) (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		content, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(content)) != name {
			continue
		}
		descriptor, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(path)), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("open the port %s: %w", name, err)
		}
		if err := awaitHost(descriptor); err != nil {
			_ = unix.Close(descriptor)
			return nil, fmt.Errorf("wait for the host on the port %s: %w", name, err)
		}
		return os.NewFile(uintptr(descriptor), name), nil
	}
	return nil, fmt.Errorf("no serial port is named %s", name)
}

// awaitHost waits until the kernel knows that the host has its end of the port open.
// Before that a read says that the stream has ended, and closing the port to open it
// again would throw away what the host has sent already.
func awaitHost(descriptor int) error {
	for {
		state := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
		if _, err := unix.Poll(state, 0); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if state[0].Revents&unix.POLLHUP == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *supervisor) setUp(line commandLine) error {
	config, err := readConfig(line)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	clock := make(chan error, 1)
	go func() {
		if line.userMode() {
			clock <- nil // The clock is the host's.
			return
		}
		clock <- keepTime()
	}()
	s.phase("loading modules")
	for _, module := range config.Modules {
		// Debian's ndctl hooks itself into libnvdimm and then wants a key file;
		// -i passes over such hooks.
		if err := run(append([]string{"modprobe", "-i"}, strings.Fields(module)...)...); err != nil {
			return err
		}
	}
	if err := writeFiles(config.Files, false); err != nil {
		return err
	}
	s.phase("setting up the network")
	if err := setUpNetwork(config.Network, line); err != nil {
		return err
	}
	for _, step := range config.Steps {
		s.phase(step.Name)
		if len(step.Unless) > 0 && run(step.Unless...) == nil {
			continue
		}
		started := time.Now()
		if err := run(step.Argv...); err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		fmt.Printf("nodeinit: %s: %.2f s\n", step.Name, time.Since(started).Seconds())
	}
	if err := writeFiles(config.Files, true); err != nil {
		return err
	}
	s.phase("watching the clock")
	if err := <-clock; err != nil {
		return err
	}
	if err := nameSuccessor(config.Init); err != nil {
		return err
	}
	for _, definition := range config.Services {
		s.phase("starting " + definition.Name)
		if err := s.start(definition); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Ready = true
	s.status.Phase = "up"
	return nil
}

func readConfig(line commandLine) (guest.Config, error) {
	var config guest.Config
	content, err := line.config()
	if err != nil {
		return config, fmt.Errorf("read the machine's configuration: %w", err)
	}
	if err := json.Unmarshal(content, &config); err != nil {
		return config, fmt.Errorf("read the machine's configuration: %w", err)
	}
	return config, nil
}

func writeFiles(files []guest.File, late bool) error {
	for _, file := range files {
		if file.Late != late {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file.Path, file.Content, os.FileMode(file.Mode)); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command to its end. Its output is part of the error.
func run(argv ...string) error {
	command := exec.Command(argv[0], argv[1:]...)
	command.Env = environment
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

func setUpNetwork(network *guest.Network, line commandLine) error {
	commands := [][]string{{"ip", "link", "set", "lo", "up"}}
	if network != nil {
		driver := []string{"modprobe", "virtio_net"}
		if line.userMode() {
			driver = []string{"ip", "link", "set", "vec0", "name", "eth0"}
		}
		commands = append(commands, driver,
			[]string{"ip", "address", "add", network.Address, "dev", "eth0"},
			[]string{"ip", "link", "set", "eth0", "up"})
		if network.Gateway != "" {
			commands = append(commands, []string{"ip", "route", "add", "default", "via", network.Gateway})
		}
		for _, route := range network.Routes {
			commands = append(commands, []string{"ip", "route", "add", route.Destination, "via", route.Via})
		}
	}
	for _, command := range commands {
		if err := run(command...); err != nil {
			return fmt.Errorf("set up the network: %w", err)
		}
	}
	return nil
}

// powerOff stops the services, last started first, then everybody else, unmounts
// the disks and switches the machine off.
func (s *supervisor) powerOff() {
	s.off.Do(func() {
		s.mu.Lock()
		services := s.services
		s.mu.Unlock()
		for i := len(services) - 1; i >= 0; i-- {
			services[i].stop(3 * time.Second)
		}
		signalOthers(unix.SIGTERM)
		time.Sleep(200 * time.Millisecond)
		signalOthers(unix.SIGKILL)
		unix.Sync()
		unmountAll()
		unix.Sync()
		if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil && !errors.Is(err, unix.EINTR) {
			fmt.Printf("nodeinit: switch off: %v\n", err)
		}
	})
}

// signalOthers signals every process but the first and this one, which is what
// kill does with the process number -1.
func signalOthers(signal unix.Signal) { _ = unix.Kill(-1, signal) }
