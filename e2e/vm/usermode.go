package vm

import (
	"errors"
	"fmt"
	"net"
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

const (
	// StorageBinary serves a machine's disks where the kernel is a program; it is of the
	// package qemu-utils.
	StorageBinary = "qemu-storage-daemon"
	// virtioBlock is the number of block devices in the virtio specification, section 5.
	virtioBlock = 2
	// socketLimit bounds the path of a unix socket, see unix(7).
	socketLimit = 107
)

// userModeArguments are the kernel's; see kernelArguments for the reasons of those that
// are the same.
const userModeArguments = "seccomp=on security=none con=null con0=null,fd:1 ssl=null quiet panic=-1 oops=panic " +
	"net.ifnames=0 cgroup_no_v1=all audit=0 init_on_alloc=0 rcupdate.rcu_expedited=1 random.trust_cpu=on"

// userModeCommands returns the command that serves the machine's disks, which must be
// started first, and the kernel. The caller closes their extra files.
func (c Config) userModeCommands(agent *os.File) (storage, kernel *exec.Cmd, err error) {
	if err := c.checkUserMode(); err != nil {
		return nil, nil, err
	}
	storage = exec.Command(StorageBinary)
	arguments := []string{
		"umid=" + c.Name, folderOption + c.Dir, fmt.Sprintf("mem=%dM", c.MemoryMiB), "initrd=" + c.UserMode.Initramfs,
		fmt.Sprintf("ssl0=fd:%d", agentDescriptor),
		guest.FolderArgument + "=" + c.Dir, guest.ModulesArgument + "=" + c.UserMode.Modules,
	}
	arguments = append(arguments, strings.Fields(userModeArguments)...)
	for i, disk := range c.allDisks() {
		socket := c.diskSocket(i)
		listener, err := listen(socket)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("serve disk %d: %w", i, err), closeAll(storage.ExtraFiles))
		}
		storage.ExtraFiles = append(storage.ExtraFiles, listener)
		const firstExtraDescriptor = 3 // See exec.Cmd.
		storage.Args = append(storage.Args, disk.storageArguments(i, firstExtraDescriptor+i)...)
		arguments = append(arguments, fmt.Sprintf("virtio_uml.device=%s:%d", socket, virtioBlock))
	}
	if c.Tap != "" {
		arguments = append(arguments, fmt.Sprintf("vec0:transport=tap,ifname=%s,mac=%s,depth=128,gro=0", c.Tap, c.MAC))
	}
	kernel = exec.Command(c.UserMode.Kernel, arguments...)
	kernel.Dir, kernel.Env = c.UserMode.Libraries, append(os.Environ(), loaderVariable)
	kernel.ExtraFiles = []*os.File{agent}
	return storage, kernel, nil
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
	paths := []string{c.Name, c.Dir, c.UserMode.Libraries, c.UserMode.Kernel, c.UserMode.Initramfs, c.UserMode.Modules}
	for _, path := range paths {
		if strings.ContainsAny(path, ": ") {
			return fmt.Errorf("%q: a name or path must have neither a colon nor a space", path)
		}
	}
	if socket := c.diskSocket(len(c.Disks)); len(socket) > socketLimit {
		return fmt.Errorf("%s: the path of a socket must not be longer than %d bytes", socket, socketLimit)
	}
	return nil
}

func (c Config) diskSocket(index int) string {
	return filepath.Join(c.Dir, fmt.Sprintf("disk%d.sock", index))
}

// storageArguments have the storage daemon serve the disk to whom connects to the socket
// that listens on the descriptor.
func (d Disk) storageArguments(index, descriptor int) []string {
	options := "discard=unmap,read-only=off"
	writable := "on"
	if d.ReadOnly {
		options, writable = "read-only=on", "off"
	}
	if d.Volatile {
		options += ",cache.no-flush=on"
	}
	return []string{
		"--blockdev", fmt.Sprintf("driver=file,node-name=file%d,filename=%s,%s", index, d.Path, options),
		"--blockdev", fmt.Sprintf("driver=raw,node-name=disk%d,file=file%d,%s", index, index, options),
		"--export", fmt.Sprintf("type=vhost-user-blk,id=export%d,node-name=disk%d,writable=%s,addr.type=fd,addr.str=%d", index, index, writable, descriptor),
	}
}

// listen returns a unix socket that listens at the path, in place of what was there.
func listen(path string) (*os.File, error) {
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	return file, errors.Join(err, listener.Close())
}

func closeAll(files []*os.File) error {
	var all error
	for _, file := range files {
		all = errors.Join(all, file.Close())
	}
	return all
}

// IsMachine reports whether a process with these arguments is one of those that run the
// machine of that name and folder.
func IsMachine(arguments []string, name, dir string) bool {
	switch filepath.Base(arguments[0]) {
	case Binary:
		return len(arguments) > 2 && arguments[1] == "-name" && arguments[2] == name
	case StorageBinary:
		return slices.ContainsFunc(arguments, func(argument string) bool {
			return strings.Contains(argument, ",filename="+dir+string(filepath.Separator))
		})
	default:
		return slices.Contains(arguments, folderOption+dir)
	}
}
