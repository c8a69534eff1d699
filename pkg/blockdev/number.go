package blockdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SectorSize is the kernel's unit of positions and sizes, in bytes, whatever the device's own
// sectors are.
const SectorSize = 512

// Number is the kernel's number of a device.
type Number struct{ Major, Minor uint32 }

// String returns MAJOR:MINOR, as in sysfs and in device-mapper tables.
func (n Number) String() string { return fmt.Sprintf("%d:%d", n.Major, n.Minor) }

// ParseNumber parses MAJOR:MINOR.
func ParseNumber(s string) (Number, error) {
	major, minor, _ := strings.Cut(s, ":")
	a, err := strconv.ParseUint(major, 10, 32)
	b, minorErr := strconv.ParseUint(minor, 10, 32)
	if err != nil || minorErr != nil {
		return Number{}, fmt.Errorf("%q is no device number", s)
	}
	return Number{uint32(a), uint32(b)}, nil
}

// NumberOf returns the number of the block device at a path, or ErrNotFound.
func NumberOf(path string) (Number, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Number{}, fmt.Errorf("device node %s: %w: %w", path, ErrNotFound, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Number{}, fmt.Errorf("device node %s: %w: it is no block device", path, ErrNotFound)
	}
	return Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}, nil
}

// Check returns ErrNotFound unless the path leads to the device.
func Check(path string, n Number) error {
	is, err := NumberOf(path)
	if err == nil && is != n {
		err = fmt.Errorf("device node %s is stale: it leads to %v, not to %v: %w", path, is, n, ErrNotFound)
	}
	return err
}

// MakeNode creates a device's node, unless the path leads to the device already.
func MakeNode(path string, n Number) error {
	if Check(path, n) == nil {
		return nil
	}
	// Rename, so that the path leads to a device at any time.
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := RemoveNode(fresh); err != nil {
		return err
	}
	if err := unix.Mknod(fresh, unix.S_IFBLK|0o600, int(unix.Mkdev(n.Major, n.Minor))); err != nil {
		return fmt.Errorf("making device node %s: %w", fresh, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(err, RemoveNode(fresh))
	}
	return nil
}

// RemoveNode removes a node, a link to one, or an empty directory of them, which another
// process may remove or fill concurrently.
func RemoveNode(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// HasDAX reports whether the kernel maps the device's contents directly into memory. A
// partition has its disk's value.
func HasDAX(path string) bool {
	n, err := NumberOf(path)
	if err != nil {
		return false
	}
	dir := "/sys/dev/block/" + n.String()
	for _, file := range []string{"queue/dax", "../queue/dax"} {
		if word := attribute(dir, file); word != "" {
			return word == "1"
		}
	}
	return false
}

// LogicalBlockSize returns the smallest unit of the device's reads and writes, in bytes. A
// partition has its disk's.
func LogicalBlockSize(path string) (int64, error) {
	n, err := NumberOf(path)
	if err != nil {
		return 0, err
	}
	dir := "/sys/dev/block/" + n.String()
	text := attribute(dir, "queue/logical_block_size")
	if text == "" {
		text = attribute(dir, "../queue/logical_block_size")
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 1 {
		return 0, fmt.Errorf("logical block size of %s: sysfs says %q", path, text)
	}
	return size, nil
}

// Sectors returns a device's size in sectors, by sysfs.
func Sectors(n Number) (int64, error) {
	text := attribute("/sys/dev/block/"+n.String(), "size")
	sectors, err := strconv.ParseInt(text, 10, 64)
	if err != nil || sectors < 1 {
		return 0, fmt.Errorf("size of device %v: sysfs says %q", n, text)
	}
	return sectors, nil
}
