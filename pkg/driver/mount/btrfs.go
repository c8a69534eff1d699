package mount

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A btrfs may span several devices, so the kernel gives each a device number
// that belongs to none of them. A volume's btrfs has one device.

// btrfsInfo is the start of struct btrfs_ioctl_fs_info_args.
type btrfsInfo struct {
	maxID, devices uint64
	fsid           [16]byte
	_              [1024 - 32]byte
}

// btrfsIOCInfo is BTRFS_IOC_FS_INFO, _IOR(0x94, 31, 1024 bytes).
const btrfsIOCInfo = 0x8400941f

// btrfsDevice asks the file system for its UUID, under which sysfs lists its
// devices.
func btrfsDevice(path string) (Device, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Device{}, err
	}
	defer f.Close()
	var info btrfsInfo
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), btrfsIOCInfo, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return Device{}, &os.PathError{Op: "BTRFS_IOC_FS_INFO", Path: path, Err: errno}
	}
	h := hex.EncodeToString(info.fsid[:])
	dir := filepath.Join("/sys/fs/btrfs", h[:8]+"-"+h[8:12]+"-"+h[12:16]+"-"+h[16:20]+"-"+h[20:], "devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Device{}, err
	}
	if len(entries) != 1 {
		return Device{}, fmt.Errorf("the btrfs at %s lies on %d devices, not on one", path, len(entries))
	}
	numbers, err := os.ReadFile(filepath.Join(dir, entries[0].Name(), "dev"))
	if err != nil {
		return Device{}, err
	}
	return parseDevice(strings.TrimSpace(string(numbers)))
}

// btrfsSource returns the device that the mount table's source names, or
// otherwise. It does not touch the file system.
func btrfsSource(source string, otherwise Device) Device {
	if device, err := (System{}).Node(source); err == nil {
		return device
	}
	return otherwise
}

// btrfsFailures sums the error counters of the btrfs mounted from a device, or
// returns zero.
func btrfsFailures(device Device) (int64, error) {
	name, err := blockName(device)
	if err != nil || name == "" {
		return 0, err
	}
	mounted, err := filepath.Glob("/sys/fs/btrfs/*/devices/" + name)
	if err != nil || len(mounted) == 0 {
		return 0, err
	}
	counters, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(mounted[0])), "devinfo/*/error_stats"))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, file := range counters {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just unmounted
		}
		if err != nil {
			return 0, err
		}
		n, err := addUp(string(content))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += n
	}
	return sum, nil
}

// addUp sums lines of a name and a number. It ignores others, such as the
// kernel's note that no counters exist yet.
func addUp(lines string) (int64, error) {
	var sum int64
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func parseDevice(s string) (Device, error) {
	left, right, _ := strings.Cut(s, ":")
	major, err := strconv.ParseUint(left, 10, 32)
	if err != nil {
		return Device{}, fmt.Errorf("device number %q: %w", s, err)
	}
	minor, err := strconv.ParseUint(right, 10, 32)
	if err != nil {
		return Device{}, fmt.Errorf("device number %q: %w", s, err)
	}
	return Device{uint32(major), uint32(minor)}, nil
}
