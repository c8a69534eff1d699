package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelError is a mount that the kernel refused. It wraps the errno.
type KernelError struct {
	// Step is what failed: the system call, and the option where it is about one.
	Step string
	// Messages are the kernel's own, without a level or an end of line. They can be empty:
	// much goes to the kernel's log alone, before Linux 5.17 all that ext4 says.
	Messages []string
	// Err is the errno.
	Err error
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

// ErrUnverified says that the kernel mounted something else than what was asked for.
// Nothing was attached.
var ErrUnverified = errors.New("what the kernel mounted is not what was asked for")

// fsContext is a file system while it is being configured, by the descriptor that
// fsopen(2) returned. Closing it before a mount is made of it leaves nothing.
type fsContext struct{ *os.File }

// openContext begins the mount of a file system of a type.
func openContext(fsType string) (fsContext, error) {
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fsContext{}, &KernelError{Step: "fsopen " + fsType, Err: err}
	}
	return fsContext{os.NewFile(uintptr(fd), "fsopen "+fsType)}, nil
}

func (c fsContext) fd() int { return int(c.Fd()) }

// failed adds to an errno what the kernel has to say of it.
func (c fsContext) failed(step string, err error) error {
	return &KernelError{Step: step, Messages: c.messages(), Err: err}
}

// messages reads the errors and warnings that the kernel keeps in the context; each read
// takes one.
func (c fsContext) messages() []string {
	var found []string
	for buffer := make([]byte, 4096); ; {
		n, err := unix.Read(c.fd(), buffer)
		if err != nil || n == 0 { // ENODATA: there are no more.
			return found
		}
		level, text, _ := strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
		if level == "e" || level == "w" {
			found = append(found, text)
		}
	}
}

// create makes a mount that is attached nowhere: closing it takes it away.
func (c fsContext) create(device string, parameters []parameter, attributes int) (*os.File, error) {
	if err := c.configure(device, parameters); err != nil {
		return nil, err
	}
	return c.mount(attributes)
}

// maxValue is how long the value of an option may be, in bytes: fsconfig(2) refuses a longer one
// without a word.
const maxValue = 255

// configure sets what is to be mounted, and how.
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

// readFileSystem is the step in which the kernel looks at the device and at all options.
const readFileSystem = "read the file system"

// mount has the kernel read the file system, and makes a mount of it.
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

// magic are the numbers by which the kernel identifies the types of mounted file systems.
var magic = map[string]int64{"ext4": unix.EXT4_SUPER_MAGIC, "xfs": unix.XFS_SUPER_MAGIC, "btrfs": unix.BTRFS_SUPER_MAGIC}

// verified are the attributes of a layer that statfs(2) shows.
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

// verify compares a mount that is attached nowhere with what was asked for: the device,
// the type, and the attributes. Options of the file system itself cannot be read before
// it is attached; the kernel refuses those that it does not know.
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

// deviceOfMount returns the block device behind a mount.
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

// showsAlready reports whether a directory is the root of a mount of the same file system
// as a mount: mount(2) refuses to put one over the other, move_mount(2) does not.
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
