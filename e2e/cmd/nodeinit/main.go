// Command nodeinit is the first process of a test machine. It is the /init of
// the initial RAM file system: it loads the drivers of the root disk, lays a RAM
// overlay over that read-only disk, so that every start of the machine finds the
// same root, sets the machine up as its configuration says (package guest) and
// then supervises its services and serves the agent (package agent).
//
// Process 1 itself only reaps orphans; all else happens in its child, so that
// waiting for its own children does not interfere with reaping orphans. Where the
// configuration names another init, process 1 becomes that one once the child has set
// the machine up.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
	"golang.org/x/sys/unix"
)

const supervise = "supervise"

// selfPath is where the root file system that the machine runs on keeps a copy
// of this program.
const selfPath = "/run/nodeinit"

func main() {
	if len(os.Args) > 1 && os.Args[1] == supervise {
		unix.CloseOnExec(successorDescriptor)
		newSupervisor().run()
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "nodeinit is the first process of a test machine and does nothing elsewhere")
		os.Exit(2)
	}
	if err := boot(); err != nil {
		fmt.Printf("nodeinit: boot: %v\n", err)
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	reap()
}

// reap starts the supervisor and collects ended processes until the machine is
// switched off. It never returns.
func reap() {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	succession, successor, err := os.Pipe()
	if err != nil {
		fmt.Printf("nodeinit: start the supervisor: %v\n", err)
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	attributes := &os.ProcAttr{
		Env:   environment,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, successor},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	supervisor, err := os.StartProcess(selfPath, []string{selfPath, supervise}, attributes)
	if err != nil {
		fmt.Printf("nodeinit: start the supervisor: %v\n", err)
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	_ = successor.Close()
	go awaitSuccessor(succession)
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid == supervisor.Pid {
			fmt.Println("nodeinit: the supervisor ended, switching off")
			unix.Sync()
			_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
			time.Sleep(time.Second)
		}
	}
}

// boot turns the initial RAM file system into the real root.
func boot() error {
	if err := mountAll(earlyMounts); err != nil {
		return err
	}
	line, err := readCommandLine()
	if err != nil {
		return err
	}
	if line.probe {
		fmt.Println(guest.ProbeReply)
		return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	if err := loadEarlyModules("/modules"); err != nil {
		return err
	}
	if err := waitFor("/dev/vda", 20*time.Second); err != nil {
		return err
	}
	if err := mountAll(rootMounts); err != nil {
		return err
	}
	for _, path := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(path, "/new"+path, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", path, err)
		}
	}
	self, err := os.ReadFile("/init")
	if err != nil {
		return err
	}
	if err := os.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("switch to the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("switch to the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Containers want to share mounts with the machine.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the root: %w", err)
	}
	if err := mountAll(lateMounts); err != nil {
		return err
	}
	if err := line.mountModules(); err != nil {
		return err
	}
	return os.WriteFile(selfPath, self, 0o755)
}

// loadEarlyModules loads the modules of the initial RAM file system in the
// order of their names.
func loadEarlyModules(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(file.Fd()), "", 0)
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", entry.Name(), err)
		}
		// The RAM file system cannot be freed; its files can.
		_ = os.Remove(path)
	}
	return nil
}

// waitFor polls for a path, for devices that appear when their driver is ready.
func waitFor(path string, bound time.Duration) error {
	deadline := time.Now().Add(bound)
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not appear within %s", path, bound)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
