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
)

// System is the running kernel, seen from the process's own mount namespace.
// It needs Linux 5.8 (to tell the root of a mount), and 5.12 to bind
// read-only.
type System struct{}

var _ Interface = System{}

// Mount implements Interface by mount(2).
func (System) Mount(device, path, fsType string, options []string) error {
	flags, data := split(options)
	if err := unix.Mount(device, path, fsType, flags, data); err != nil {
		return &os.PathError{Op: "mount", Path: path, Err: err}
	}
	return nil
}

// Bind implements Interface. The layer is made detached, gets its read-only
// bit there, and is attached last: a copy that mount propagation makes in
// another namespace, such as the host's, has the bit too. Remounting the
// attached layer would change only our own.
func (System) Bind(source, path string, readOnly bool) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	tree := os.NewFile(uintptr(fd), source)
	defer tree.Close()
	if readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return &os.PathError{Op: "mount_setattr", Path: path, Err: err}
		}
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: path, Err: err}
	}
	return nil
}

// Off implements Interface by umount(2). It does not look at the path first:
// that could fail or block on a dead device.
func (System) Off(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
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
			Err: fmt.Errorf("the kernel cannot tell the root of a mount, Linux 5.8 or newer is needed: %w", unix.ENOSYS)}
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return State{}, nil
	}
	var statfs unix.Statfs_t
	if err := unix.Statfs(path, &statfs); err != nil {
		return State{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	s := State{Mounted: true, Device: Device{st.Dev_major, st.Dev_minor}, ReadOnly: statfs.Flags&unix.ST_RDONLY != 0}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		s.Node, s.Device = true, Device{st.Rdev_major, st.Rdev_minor}
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
		points = append(points, Point{
			Path:      i.Mountpoint,
			Device:    Device{uint32(i.Major), uint32(i.Minor)},
			Root:      i.Root,
			FSType:    i.FSType,
			Options:   strings.Split(i.Options, ","),
			FSOptions: strings.Split(i.VFSOptions, ","),
		})
	}
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Path, b.Path) })
	return points, nil
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
	link, err := os.Readlink("/sys/dev/block/" + device.String())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	content, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(link), "errors_count"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
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
