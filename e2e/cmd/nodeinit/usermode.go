package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/e2e/vm/guest"
	"golang.org/x/sys/unix"
)

// commandLine is what the kernel's command line says to the first process.
type commandLine struct {
	probe bool
	// folder and modules are folders of the host's, which only a kernel in user mode can
	// mount. They are empty in a virtual machine.
	folder, modules string
}

func readCommandLine() (commandLine, error) {
	content, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return commandLine{}, fmt.Errorf("read the kernel's command line: %w", err)
	}
	return parseCommandLine(string(content)), nil
}

func parseCommandLine(content string) (line commandLine) {
	for word := range strings.FieldsSeq(content) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case guest.ProbeArgument:
			line.probe = true
		case guest.FolderArgument:
			line.folder = value
		case guest.ModulesArgument:
			line.modules = value
		}
	}
	return line
}

// userMode reports whether the kernel is a program on the host.
func (c commandLine) userMode() bool { return c.folder != "" }

// mountModules puts the modules of a kernel in user mode where modprobe looks for them.
func (c commandLine) mountModules() error {
	if !c.userMode() {
		return nil
	}
	return mountHost(c.modules, filepath.Join("/lib/modules", filepath.Base(c.modules)))
}

// config returns the machine's configuration as it was handed over.
func (c commandLine) config() ([]byte, error) {
	if !c.userMode() {
		return os.ReadFile("/sys/firmware/qemu_fw_cfg/by_name/" + guest.FirmwareItem + "/raw")
	}
	const folder = "/run/machine"
	if err := mountHost(c.folder, folder); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Unmount(folder, 0) }()
	return os.ReadFile(filepath.Join(folder, guest.ConfigFile))
}

// mountHost mounts a folder of the host's, only to be read.
func mountHost(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("none", target, "hostfs", unix.MS_RDONLY, source); err != nil {
		return fmt.Errorf("mount the host's %s: %w", source, err)
	}
	return nil
}

// openTerminal opens the terminal that the agent serves and has it pass on all bytes as
// they are, see cfmakeraw in termios(3).
func openTerminal(path string) (*os.File, error) {
	descriptor, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal %s: %w", path, err)
	}
	settings, err := unix.IoctlGetTermios(descriptor, unix.TCGETS)
	if err == nil {
		settings.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		settings.Oflag &^= unix.OPOST
		settings.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		settings.Cflag = settings.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
		settings.Cc[unix.VMIN], settings.Cc[unix.VTIME] = 1, 0
		err = unix.IoctlSetTermios(descriptor, unix.TCSETS, settings)
	}
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, fmt.Errorf("set up the terminal %s: %w", path, err)
	}
	terminal := os.NewFile(uintptr(descriptor), path)
	if _, err := terminal.WriteString(guest.Greeting); err != nil {
		_ = terminal.Close()
		return nil, fmt.Errorf("greet on the terminal %s: %w", path, err)
	}
	return terminal, nil
}
