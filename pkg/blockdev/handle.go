package blockdev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WriteMark counts the writes to a device.
type WriteMark struct {
	// Boot is the kernel's random ID of its run, and Sequence the device's number, unique in
	// that run. Before Linux 5.15 Sequence is zero, and marks of two handles are not
	// comparable.
	Boot     string `json:"boot,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
	// Sectors counts those written and discarded since the device was created.
	Sectors uint64 `json:"sectors,omitempty"`
}

// Lasts reports whether the mark is comparable with one of another handle.
func (m WriteMark) Lasts() bool { return m.Boot != "" && m.Sequence != 0 }

// Handle is a device opened for one user. Close may be called during another operation, such as
// an abandoned one: that ends on this device, and later ones fail.
type Handle interface {
	// Size is in bytes.
	Size() int64
	// Zero, Overwrite and Discard clear a range. off and length are multiples of 512. They may
	// be slow; callers choose the length accordingly.
	//
	// Zero makes the range read as zeroes in the fastest way: by deallocation where the device
	// guarantees that.
	Zero(off, length int64) error
	// Overwrite makes the range read as zeroes and keeps it allocated.
	Overwrite(off, length int64) error
	// Discard hints that the contents are not needed; reads then return anything. It is no
	// error if the device cannot discard.
	Discard(off, length int64) error
	// ReadAt and WriteAt use the page cache until Uncached. off and the length are multiples of
	// 4096.
	io.ReaderAt
	io.WriterAt
	// Uncached makes ReadAt and WriteAt bypass the page cache from now on, if the device can.
	// Their buffers must then be aligned like large ones from make.
	Uncached()
	// Sync returns once all earlier writes and zeroed ranges are durable.
	Sync() error
	// Written counts the writes to the device so far. Two equal marks, even of two handles,
	// mean no writes in between. Data in the page cache counts once it is written, such as by
	// Sync. Written returns ErrNotCounted if an administrator disabled the kernel's counting.
	Written() (WriteMark, error)
	// CountWrites enables the counting from now on, or returns ErrNotCounted.
	CountWrites() error
	Close() error
}

type handle struct {
	f    *os.File
	size int64
	// noPunch means that the device refused to zero by deallocation.
	noPunch bool
	number  Number
}

// Open opens a block device for one user. It returns ErrNotFound unless the node leads to the
// device of the number. An exclusive open fails with ErrClaimed, which names the holders, while
// the device is mounted or mapped; as long as it is open, the kernel refuses mounts and
// mappings.
func Open(path string, want Number, exclusive bool) (Handle, error) {
	flags := os.O_RDWR | unix.O_CLOEXEC
	if exclusive {
		flags |= unix.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%s: %w%s", path, ErrClaimed, holders("/", want))
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	case err != nil:
		return nil, err
	}
	d := &handle{f: f, number: want}
	if err := d.check(); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

func (d *handle) check() error {
	var st unix.Stat_t
	if err := d.use(func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return fmt.Errorf("%s: %w", d.f.Name(), err)
	}
	is := Number{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || is != d.number {
		return fmt.Errorf("%s: stale device node: it is %v, the volume is %v: %w", d.f.Name(), is, d.number, ErrNotFound)
	}
	var err error
	if d.size, err = d.f.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("%s: %w", d.f.Name(), err)
	}
	return nil
}

// use calls do with the device's descriptor, which stays open until do returns, even during
// Close. After Close, use fails: another file may have the number.
func (d *handle) use(do func(fd int) error) error {
	c, err := d.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func (d *handle) allocate(mode uint32, off, length int64) error {
	return d.use(func(fd int) error { return unix.Fallocate(fd, mode|unix.FALLOC_FL_KEEP_SIZE, off, length) })
}

func (d *handle) Size() int64 { return d.size }

// Zero makes the device deallocate the range where it guarantees zeroes afterwards, and
// otherwise makes the kernel write them, offloaded or not. Both are the command write-zeroes.
// Linux does not reveal what a discarded range reads as: discard_zeroes_data is always 0.
func (d *handle) Zero(off, length int64) error {
	if !d.noPunch {
		err := d.allocate(unix.FALLOC_FL_PUNCH_HOLE, off, length)
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

func (d *handle) Overwrite(off, length int64) error {
	if err := d.allocate(unix.FALLOC_FL_ZERO_RANGE, off, length); err != nil {
		return fmt.Errorf("%s: zero %d bytes at %d: %w", d.f.Name(), length, off, err)
	}
	return nil
}

func (d *handle) Discard(off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	err := d.use(func(fd int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span)))
		if errno != 0 && errno != unix.EOPNOTSUPP {
			return errno
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: discard %d bytes at %d: %w", d.f.Name(), length, off, err)
	}
	return nil
}

func (d *handle) ReadAt(b []byte, off int64) (int, error)  { return d.f.ReadAt(b, off) }
func (d *handle) WriteAt(b []byte, off int64) (int, error) { return d.f.WriteAt(b, off) }

// Uncached leaves a device that cannot bypass the page cache as it is.
func (d *handle) Uncached() {
	_ = d.use(func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT)
		}
		return err
	})
}

// Zero-based fields of a device's stat in sysfs (Linux, block/stat.rst).
const (
	statWritten   = 6
	statDiscarded = 13
)

// bootID names the kernel's run, see random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

func (d *handle) folder() string { return "/sys/dev/block/" + d.number.String() }

// iostats in that directory is 0 if the kernel does not count.
const iostats = "queue/iostats"

// CountWrites implements Handle. For devices of the device mapper, Linux 6.1 shows 0 but counts
// anyway; newer kernels begin with 1 and heed the file.
func (d *handle) CountWrites() error {
	err := d.counted()
	if err == nil {
		return nil
	}
	if failed := os.WriteFile(d.folder()+"/"+iostats, []byte("1"), 0o600); failed != nil {
		return fmt.Errorf("%w: %w", err, failed)
	}
	return d.counted()
}

func (d *handle) counted() error {
	if attribute(d.folder(), iostats) == "0" {
		return fmt.Errorf("%s: %w: %s/%s is 0", d.f.Name(), ErrNotCounted, d.folder(), iostats)
	}
	return nil
}

func (d *handle) Written() (WriteMark, error) {
	if err := d.counted(); err != nil {
		return WriteMark{}, err
	}
	folder := d.folder()
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return WriteMark{}, fmt.Errorf("what was written to %s: %w", d.f.Name(), err)
	}
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return WriteMark{}, fmt.Errorf("what was written to %s, since when: %w", d.f.Name(), err)
	}
	mark := WriteMark{Boot: strings.TrimSpace(string(boot))}
	mark.Sequence, _ = strconv.ParseUint(attribute(folder, "diskseq"), 10, 64)
	fields := strings.Fields(string(stat))
	for _, field := range []int{statWritten, statDiscarded} {
		if field >= len(fields) {
			return WriteMark{}, fmt.Errorf("what was written to %s: %d fields in its stat, want more than %d", d.f.Name(), len(fields), field)
		}
		n, err := strconv.ParseUint(fields[field], 10, 64)
		if err != nil {
			return WriteMark{}, fmt.Errorf("what was written to %s: %w", d.f.Name(), err)
		}
		mark.Sectors += n
	}
	return mark, nil
}

func (d *handle) Sync() error  { return d.f.Sync() }
func (d *handle) Close() error { return d.f.Close() }
