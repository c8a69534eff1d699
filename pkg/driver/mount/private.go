package mount

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// labelOptions are SELinux's (security_fs_context_parse_param in the kernel).
var labelOptions = map[string]bool{"context": true, "fscontext": true, "defcontext": true, "rootcontext": true}

// takesLabelsByMount reports whether fsconfig(2) may have failed only because
// of labels. Before Linux 6.8 btrfs takes them from mount(2) alone: when the
// kernel applies those of the context, the file system already has others.
// Without SELinux the option itself is rejected, earlier.
func takesLabelsByMount(fsType string, parameters []parameter, refused error) bool {
	var kernel *KernelError
	if fsType != "btrfs" || !errors.As(refused, &kernel) || kernel.Step != readFileSystem || !errors.Is(kernel, unix.EINVAL) {
		return false
	}
	for _, p := range parameters {
		if labelOptions[p.key] {
			return true
		}
	}
	return false
}

// mountPrivately returns a detached copy of a mount made by mount(2), in a
// mount namespace that no other thread sees and that ends with its thread.
func mountPrivately(device, fsType string, options []string, attributes int) (*os.File, error) {
	type made struct {
		tree *os.File
		err  error
	}
	result := make(chan made)
	go func() {
		// Never unlock the thread: it has another namespace.
		runtime.LockOSThread()
		tree, err := mountInNamespace(device, fsType, options, attributes)
		result <- made{tree, err}
	}()
	r := <-result
	return r.tree, r.err
}

// somewhere is the mount point in the private namespace. It exists on every
// system, and nothing is looked up in it afterwards.
const somewhere = "/dev"

// mountInNamespace moves the thread to a mount namespace of its own and mounts
// there. It unmounts before it returns, in case the thread does not end.
func mountInNamespace(device, fsType string, options []string, attributes int) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts from other namespaces: %w", err)
	}
	flags := uintptr(0)
	if attributes&unix.MOUNT_ATTR_RDONLY != 0 {
		flags = unix.MS_RDONLY
	}
	var data []string
	for _, option := range options {
		if _, ofLayer := layerOptions[option]; !ofLayer {
			data = append(data, option)
		}
	}
	if err := unix.Mount(device, somewhere, fsType, flags, strings.Join(data, ",")); err != nil {
		return nil, &KernelError{Step: "mount " + device, Err: err}
	}
	defer func() { _ = unix.Unmount(somewhere, unix.MNT_DETACH) }()
	fd, err := unix.OpenTree(unix.AT_FDCWD, somewhere, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: somewhere, Err: err}
	}
	tree := os.NewFile(uintptr(fd), somewhere)
	attr := unix.MountAttr{Attr_clr: atimeMask, Attr_set: uint64(attributes)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	return tree, nil
}
