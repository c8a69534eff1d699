package lvm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockDevice is a Handle on a real block device.
type blockDevice struct {
	f    *os.File
	size int64
	// noPunch is set once the device refused to zero by deallocation.
	noPunch bool
	// number is MAJOR:MINOR.
	number string
}

// openExclusive opens a block device with O_EXCL: the kernel refuses that
// while it is mounted or mapped, and refuses mounts while we hold it.
func openExclusive(path string, major, minor uint32) (*blockDevice, error) {
	return openDevice(path, unix.O_EXCL, major, minor)
}

// openDevice opens a block device. It must have the given numbers, or it is a
// stale node.
func openDevice(path string, flags int, major, minor uint32) (*blockDevice, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%s: %w", path, ErrClaimed)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	case err != nil:
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(st.Rdev) != major || unix.Minor(st.Rdev) != minor {
		f.Close()
		return nil, fmt.Errorf("%s: stale device node: it is %d:%d, the volume is %d:%d: %w",
			path, unix.Major(st.Rdev), unix.Minor(st.Rdev), major, minor, ErrNotFound)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &blockDevice{f: f, size: size, number: fmt.Sprintf("%d:%d", major, minor)}, nil
}

func (d *blockDevice) Size() int64 { return d.size }

// Zero lets the device deallocate the range where it guarantees zeroes
// afterwards, and otherwise has the kernel write them, offloaded or not.
func (d *blockDevice) Zero(off, length int64) error {
	if !d.noPunch {
		err := unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("%s: zero %d bytes at %d: %w", d.f.Name(), length, off, err)
		}
		d.noPunch = true
	}
	return d.Overwrite(off, length)
}

func (d *blockDevice) Overwrite(off, length int64) error {
	if err := unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, length); err != nil {
		return fmt.Errorf("%s: zero %d bytes at %d: %w", d.f.Name(), length, off, err)
	}
	return nil
}

func (d *blockDevice) Discard(off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.f.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span)))
	runtime.KeepAlive(d.f)
	if errno != 0 && errno != unix.EOPNOTSUPP {
		return fmt.Errorf("%s: discard %d bytes at %d: %w", d.f.Name(), length, off, errno)
	}
	return nil
}

func (d *blockDevice) ReadAt(b []byte, off int64) (int, error)  { return d.f.ReadAt(b, off) }
func (d *blockDevice) WriteAt(b []byte, off int64) (int, error) { return d.f.WriteAt(b, off) }

// Uncached implements Handle. A device that cannot do it goes through the page cache.
func (d *blockDevice) Uncached() {
	if flags, err := unix.FcntlInt(d.f.Fd(), unix.F_GETFL, 0); err == nil {
		_, _ = unix.FcntlInt(d.f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
}

// Fields of a device's file stat in sysfs, counted from zero (Linux, block/stat.rst).
const (
	statWritten   = 6
	statDiscarded = 13
)

// Written implements Handle, in sectors.
func (d *blockDevice) Written() (uint64, error) {
	stat, err := os.ReadFile("/sys/dev/block/" + d.number + "/stat")
	if err != nil {
		return 0, fmt.Errorf("what was written to %s: %w", d.f.Name(), err)
	}
	fields := strings.Fields(string(stat))
	var sum uint64
	for _, field := range []int{statWritten, statDiscarded} {
		if field >= len(fields) && field == statDiscarded {
			break // before Linux 4.18
		}
		n, err := strconv.ParseUint(fields[field], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("what was written to %s: %w", d.f.Name(), err)
		}
		sum += n
	}
	return sum, nil
}

func (d *blockDevice) Sync() error  { return d.f.Sync() }
func (d *blockDevice) Close() error { return d.f.Close() }
