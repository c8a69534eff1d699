package mount

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/nofollow"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// System is the kernel, seen from the process's mount namespace. It needs Linux
// 5.8 to identify the root of a mount, and 5.12 for read-only binds.
type System struct {
	// Trusted is the directory below which mount paths must have no symbolic
	// links; its own path may have some. If empty, no link is followed
	// anywhere. Paths of device nodes may always have links.
	Trusted string
	// Proc is where a proc file system shows the host's processes. Empty means
	// /proc.
	Proc string
}

var _ Interface = System{}

// handle is a path for system calls that take no descriptor.
func handle(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// Mount implements Interface. It creates the mount detached, verifies it, and
// attaches it last. If the process is killed before that, the kernel drops the
// mount with its last descriptor.
func (s System) Mount(source Source, path, fsType string, options []string) error {
	dir, err := nofollow.Directory(s.Trusted, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if stands, err := s.Node(source.Node); err != nil {
		return err
	} else if source.Device == (Device{}) {
		source.Device = stands
	}
	attributes, parameters := split(options)
	context, err := openContext(fsType)
	if err != nil {
		return fmt.Errorf("mount at %s: %w", path, err)
	}
	defer context.Close()
	tree, err := context.create(source.Node, parameters, attributes)
	if takesLabelsByMount(fsType, parameters, err) {
		context.Close() // it holds the device
		tree, err = mountPrivately(source.Node, fsType, options, attributes)
	}
	if err != nil {
		return fmt.Errorf("mount at %s: %w", path, err)
	}
	defer tree.Close()
	if err := verify(tree, source.Device, fsType, attributes); err != nil {
		return fmt.Errorf("mount at %s: %w", path, err)
	}
	if again, err := showsAlready(dir, tree); err != nil {
		return err
	} else if again {
		return &os.PathError{Op: "mount", Path: path, Err: unix.EBUSY}
	}
	return attach(tree, dir, "", path)
}

// attach attaches a mount at name in dir, or over dir itself if name is empty.
func attach(tree, dir *os.File, name, path string) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if name == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	// Without MOVE_MOUNT_T_SYMLINKS no link at name is followed.
	if err := unix.MoveMount(int(tree.Fd()), "", int(dir.Fd()), name, flags); err != nil {
		return &os.PathError{Op: "move_mount", Path: path, Err: err}
	}
	return nil
}

// Bind implements Interface. It makes the layer read-only while detached, so
// copies that propagate to other namespaces, such as the host's, are read-only
// too. A remount would change only our own layer.
func (s System) Bind(source, path string, readOnly bool) error {
	tree, err := s.clone(source)
	if err != nil {
		return err
	}
	defer tree.Close()
	dir, name, err := nofollow.Parent(s.Trusted, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return &os.PathError{Op: "mount_setattr", Path: path, Err: err}
		}
	}
	return attach(tree, dir, name, path)
}

// clone returns a detached copy of a layer. A device node outside of Trusted
// may be a link, as LVM makes them.
func (s System) clone(source string) (*os.File, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	at, name, more := unix.AT_FDCWD, source, uint(0)
	if nofollow.Below(s.Trusted, source) {
		dir, last, err := nofollow.Parent(s.Trusted, source)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		at, name, more = int(dir.Fd()), last, unix.AT_SYMLINK_NOFOLLOW
	}
	fd, err := unix.OpenTree(at, name, flags|more)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	return os.NewFile(uintptr(fd), source), nil
}

// Unmount implements Interface. It does not inspect the path first: on a dead
// device that may fail or block.
//
// It is never lazy (MNT_DETACH), or users would go on writing to a volume that
// counts as free. A dead device needs no lazy unmount: the kernel unmounts its
// file systems as usual.
func (s System) Unmount(path string) error {
	dir, name, err := nofollow.Parent(s.Trusted, path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	through := handle(dir) + "/" + name
	for {
		err := unix.Unmount(through, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil // not a mount point
		case errors.Is(err, unix.EINTR):
		default:
			return &os.PathError{Op: "umount", Path: path, Err: err}
		}
	}
}

// FITHAW, _IOWR('X', 120, int), from linux/fs.h.
const fiThaw = 0xc0045878

// Thaw implements Interface by ioctl(2).
func (s System) Thaw(path string) (bool, error) {
	parent, name, err := nofollow.Parent(s.Trusted, path)
	if err != nil {
		return false, err
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	err = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	switch {
	case errors.Is(err, unix.EINVAL): // not frozen
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "FITHAW", Path: path, Err: err}
	}
	return true, nil
}

// At implements Interface.
func (System) At(path string) (State, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return State{}, nil
	}
	if err != nil {
		return State{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return State{}, &os.PathError{Op: "statx", Path: path,
			Err: fmt.Errorf("the kernel cannot identify the root of a mount, Linux 5.8 or newer is needed: %w", unix.ENOSYS)}
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return State{}, nil
	}
	var statfs unix.Statfs_t
	if err := unix.Statfs(path, &statfs); err != nil {
		return State{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	s := State{Mounted: true, Device: Device{st.Dev_major, st.Dev_minor}, ReadOnly: statfs.Flags&unix.ST_RDONLY != 0}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFBLK:
		s.Node, s.Device = true, Device{st.Rdev_major, st.Rdev_minor}
	case statfs.Type == unix.BTRFS_SUPER_MAGIC:
		if s.Device, err = btrfsDevice(path); err != nil {
			return State{}, err
		}
	}
	return s, nil
}

// Below implements Interface by reading /proc/self/mountinfo.
func (System) Below(dir string) ([]Point, error) {
	prefix := strings.TrimSuffix(filepath.Clean(dir), "/") + "/"
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, prefix), false
	})
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	points := make([]Point, 0, len(found))
	for _, i := range found {
		points = append(points, pointOf(i))
	}
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Path, b.Path) })
	return points, nil
}

func pointOf(i *mountinfo.Info) Point {
	device := Device{uint32(i.Major), uint32(i.Minor)}
	if i.FSType == "btrfs" {
		device = btrfsSource(i.Source, device)
	}
	return Point{
		Path:      i.Mountpoint,
		Device:    device,
		Root:      i.Root,
		FSType:    i.FSType,
		Options:   strings.Split(i.Options, ","),
		FSOptions: filesystem.SplitOptions(i.VFSOptions),
	}
}

// Node implements Interface.
func (System) Node(path string) (Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Device{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Device{}, &os.PathError{Op: "stat", Path: path, Err: unix.ENOTBLK}
	}
	return Device{unix.Major(st.Rdev), unix.Minor(st.Rdev)}, nil
}

// Usage implements Interface by statfs(2).
func (System) Usage(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	unit := st.Frsize
	return Usage{
		TotalBytes:     int64(st.Blocks) * unit,
		AvailableBytes: int64(st.Bavail) * unit,
		UsedBytes:      int64(st.Blocks-st.Bfree) * unit,
		TotalInodes:    int64(st.Files),
		FreeInodes:     int64(st.Ffree),
		UsedInodes:     int64(st.Files - st.Ffree),
	}, nil
}

// Errors implements Interface by reading sysfs.
func (System) Errors(device Device) (int64, error) {
	return ext4Count(device, "errors_count")
}

// Warnings implements Interface by reading sysfs.
func (System) Warnings(device Device) (int64, error) {
	warnings, err := ext4Count(device, "warning_count")
	if err != nil {
		return 0, err
	}
	failed, err := btrfsFailures(device)
	return warnings + failed, err
}

// ext4Count returns zero if no ext4 is mounted from the device.
func ext4Count(device Device, counter string) (int64, error) {
	name, err := blockName(device)
	if err != nil || name == "" {
		return 0, err
	}
	content, err := os.ReadFile(filepath.Join("/sys/fs/ext4", name, counter))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
}

// blockName returns the kernel's name, such as dm-3, or "" if the device is
// gone.
func blockName(device Device) (string, error) {
	link, err := os.Readlink("/sys/dev/block/" + device.String())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(link), err
}

// Mapped implements Interface by reading sysfs.
func (System) Mapped(device Device) (name, uuid string, err error) {
	dir := "/sys/dev/block/" + device.String() + "/dm/"
	for file, to := range map[string]*string{"name": &name, "uuid": &uuid} {
		content, err := os.ReadFile(dir + file)
		if errors.Is(err, fs.ErrNotExist) {
			return "", "", nil
		}
		if err != nil {
			return "", "", err
		}
		*to = strings.TrimSpace(string(content))
	}
	return name, uuid, nil
}

// NodeSize implements Interface.
func (System) NodeSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}
