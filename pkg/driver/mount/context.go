package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelError is a mount that the kernel refused.
type KernelError struct {
	// Step is the failed system call, or the option that it set.
	Step string
	// Messages are the kernel's, without level and newline. They may be
	// missing: many messages go only to the kernel log, before Linux 5.17 all
	// of ext4's.
	Messages []string
	Err      error
}

// Error names the step and the errno, and quotes the kernel.
func (e *KernelError) Error() string {
	if len(e.Messages) == 0 {
		return fmt.Sprintf("%s: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("%s: %v: the kernel says %q", e.Step, e.Err, strings.Join(e.Messages, "; "))
}

// Unwrap returns the errno.
func (e *KernelError) Unwrap() error { return e.Err }

// ErrUnverified means that the kernel mounted something else than requested.
// Nothing was attached.
var ErrUnverified = errors.New("what the kernel mounted is not what was asked for")

// fsContext is the descriptor of fsopen(2), a file system being configured.
// Closing it before the mount is created leaves nothing.
type fsContext struct{ *os.File }

func openContext(fsType string) (fsContext, error) {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fsContext{}, &KernelError{Step: "fsopen " + fsType, Err: err}
	}
	return fsContext{os.NewFile(uintptr(fd), "fsopen "+fsType)}, nil
}

func (c fsContext) fd() int { return int(c.Fd()) }

func (c fsContext) failed(step string, err error) error {
	return &KernelError{Step: step, Messages: c.messages(), Err: err}
}

// messages reads the kernel's errors and warnings about the context, one per
// read.
func (c fsContext) messages() []string {
	var found []string
	for buffer := make([]byte, 4096); ; {
		n, err := unix.Read(c.fd(), buffer)
		if err != nil || n == 0 { // ENODATA: no more messages
			return found
		}
		level, text, _ := strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
		if level == "e" || level == "w" {
			found = append(found, text)
		}
	}
}

// create returns a detached mount, which vanishes when closed.
func (c fsContext) create(device string, parameters []parameter, attributes int) (*os.File, error) {
	if err := c.configure(device, parameters); err != nil {
		return nil, err
	}
	return c.mount(attributes)
}

// maxValue is the maximum length of an option's value in bytes. fsconfig(2)
// rejects longer ones without a message.
const maxValue = 255

func (c fsContext) configure(device string, parameters []parameter) error {
	if err := unix.FsconfigSetString(c.fd(), "source", device); err != nil {
		return c.failed("device "+device, err)
	}
	for _, p := range parameters {
		if len(p.value) > maxValue {
			return fmt.Errorf("option %s: the value has %d bytes, allowed are %d: %w", p.key, len(p.value), maxValue, unix.ENAMETOOLONG)
		}
		var err error
		if p.flag {
			err = unix.FsconfigSetFlag(c.fd(), p.key)
		} else {
			err = unix.FsconfigSetString(c.fd(), p.key, p.value)
		}
		if err != nil {
			return c.failed("option "+p.key, err)
		}
	}
	return nil
}

// The kernel reads the device and validates the options in this step.
const readFileSystem = "read the file system"

func (c fsContext) mount(attributes int) (*os.File, error) {
	if err := unix.FsconfigCreate(c.fd()); err != nil {
		return nil, c.failed(readFileSystem, err)
	}
	fd, err := unix.Fsmount(c.fd(), unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, c.failed("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "fsmount"), nil
}

var magic = map[string]int64{"ext4": unix.EXT4_SUPER_MAGIC, "xfs": unix.XFS_SUPER_MAGIC, "btrfs": unix.BTRFS_SUPER_MAGIC}

// verified are the layer attributes that statfs(2) shows.
var verified = []struct {
	name      string
	attribute int
	flag      int64
}{
	{"read-only", unix.MOUNT_ATTR_RDONLY, unix.ST_RDONLY},
	{"nosuid", unix.MOUNT_ATTR_NOSUID, unix.ST_NOSUID},
	{"nodev", unix.MOUNT_ATTR_NODEV, unix.ST_NODEV},
	{"noexec", unix.MOUNT_ATTR_NOEXEC, unix.ST_NOEXEC},
	{"noatime", unix.MOUNT_ATTR_NOATIME, unix.ST_NOATIME},
	{"nodiratime", unix.MOUNT_ATTR_NODIRATIME, unix.ST_NODIRATIME},
}

// verify compares the device, type and attributes of a detached mount with the
// request. Options of the file system cannot be read before it is attached, but
// the kernel rejects unknown ones.
func verify(tree *os.File, want Device, fsType string, attributes int) error {
	var statfs unix.Statfs_t
	if err := unix.Fstatfs(int(tree.Fd()), &statfs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if known, ok := magic[fsType]; ok && statfs.Type != known {
		return fmt.Errorf("%w: its type has the number %#x, %s has %#x", ErrUnverified, statfs.Type, fsType, known)
	}
	device, err := deviceOfMount(tree, statfs.Type)
	if err != nil {
		return err
	}
	if device != want {
		return fmt.Errorf("%w: it lies on device %v instead of %v", ErrUnverified, device, want)
	}
	for _, v := range verified {
		if is, wanted := statfs.Flags&v.flag != 0, attributes&v.attribute != 0; is != wanted {
			return fmt.Errorf("%w: it has %s %t, %t was asked for", ErrUnverified, v.name, is, wanted)
		}
	}
	return nil
}

func deviceOfMount(tree *os.File, fsType int64) (Device, error) {
	if fsType == unix.BTRFS_SUPER_MAGIC {
		return btrfsDevice(handle(tree) + "/.")
	}
	var st unix.Statx_t
	if err := unix.Statx(int(tree.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st); err != nil {
		return Device{}, os.NewSyscallError("statx", err)
	}
	return Device{st.Dev_major, st.Dev_minor}, nil
}

// showsAlready reports whether dir is the root of a mount of tree's file
// system. mount(2) rejects such a mount, move_mount(2) does not.
func showsAlready(dir, tree *os.File) (bool, error) {
	var at, added unix.Statx_t
	for f, st := range map[*os.File]*unix.Statx_t{dir: &at, tree: &added} {
		if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO, st); err != nil {
			return false, os.NewSyscallError("statx", err)
		}
	}
	return at.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 &&
		at.Dev_major == added.Dev_major && at.Dev_minor == added.Dev_minor && at.Ino == added.Ino, nil
}
