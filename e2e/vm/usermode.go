package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

// UserMode names the parts of a Linux kernel that runs as a program on the host, User
// Mode Linux. Its instructions are the processor's own; only system calls and page
// faults take a detour. All fields are paths.
type UserMode struct {
	// Kernel is started in the folder Libraries, where it finds its dynamic loader and C
	// library: the host's own may be too old for it.
	Kernel, Libraries string
	Initramfs         string
	// Modules is the folder of the kernel's modules.
	Modules string
}

// userModeArguments are the kernel's; see kernelArguments for the reasons of those that
// are the same.
const userModeArguments = "seccomp=on security=none con=null con0=null,fd:1 ssl=null quiet panic=-1 oops=panic " +
	"net.ifnames=0 cgroup_no_v1=all audit=0 init_on_alloc=0 rcupdate.rcu_expedited=1 random.trust_cpu=on"

// userModeCommand returns the command that is the machine.
func (c Config) userModeCommand() (*exec.Cmd, error) {
	if err := c.checkUserMode(); err != nil {
		return nil, err
	}
	arguments := []string{
		"umid=" + c.Name, folderOption + c.Dir, fmt.Sprintf("mem=%dM", c.MemoryMiB), "initrd=" + c.UserMode.Initramfs,
		fmt.Sprintf("ssl0=fd:%d", agentDescriptor),
		guest.FolderArgument + "=" + c.Dir, guest.ModulesArgument + "=" + c.UserMode.Modules,
	}
	arguments = append(arguments, strings.Fields(userModeArguments)...)
	for i, disk := range c.allDisks() {
		arguments = append(arguments, disk.userModeArgument(i))
	}
	if c.Tap != "" {
		arguments = append(arguments, fmt.Sprintf("vec0:transport=tap,ifname=%s,mac=%s,depth=128,gro=0", c.Tap, c.MAC))
	}
	command := exec.Command(c.UserMode.Kernel, arguments...)
	command.Dir, command.Env = c.UserMode.Libraries, append(os.Environ(), loaderVariable)
	return command, nil
}

// userModeArgument gives the kernel the disk. What the machine flushes is always synced
// to the host's disk.
func (d Disk) userModeArgument(index int) string {
	flags := ""
	if d.ReadOnly {
		flags = "rc" // Others read it, too: it is not locked.
	}
	return fmt.Sprintf("ubd%d%s=%s,,%s", index, flags, d.Path, d.Serial)
}

const (
	// folderOption is the kernel's for the folder of what it keeps while it runs.
	folderOption = "uml_dir="
	// loaderVariable has the loader look for libraries in the folder it is started in.
	loaderVariable = "LD_LIBRARY_PATH=."
)

// checkUserMode finds what such a machine cannot have, and what its parts would misread.
func (c Config) checkUserMode() error {
	if err := c.check(); err != nil {
		return err
	}
	switch {
	case c.PmemMiB > 0:
		return errors.New("a machine in user mode has no persistent memory")
	case c.SELinux:
		return errors.New("a machine in user mode has no SELinux")
	case slices.ContainsFunc(c.Disks, func(d Disk) bool { return d.Socket != "" }):
		return errors.New("a machine in user mode has disks of files only")
	}
	paths := []string{c.Name, c.Dir, c.RootDisk, c.UserMode.Initramfs, c.UserMode.Modules}
	for _, disk := range c.Disks {
		paths = append(paths, disk.Path, disk.Serial)
	}
	for _, path := range paths {
		if strings.ContainsAny(path, ": ") {
			return fmt.Errorf("%q: a name or path must have neither a colon nor a space", path)
		}
	}
	return nil
}

// IsMachine reports whether a process with these arguments is one of those that run the
// machine of that name and folder.
func IsMachine(arguments []string, name, dir string) bool {
	switch filepath.Base(arguments[0]) {
	case Binary:
		return len(arguments) > 2 && arguments[1] == "-name" && arguments[2] == name
	default:
		return slices.Contains(arguments, folderOption+dir)
	}
}
