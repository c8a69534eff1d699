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

// WriteMark says how much was written to a device, since which beginning.
type WriteMark struct {
	// Boot is the kernel's random name of its own run, and Sequence the number that no
	// other device had in that run. Sequence is zero before Linux 5.15: then marks of two
	// handles cannot be compared.
	Boot     string `json:"boot,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
	// Sectors were written and discarded since the device was made.
	Sectors uint64 `json:"sectors,omitempty"`
}

// Lasts reports whether the mark can be compared with one of another handle.
func (m WriteMark) Lasts() bool { return m.Boot != "" && m.Sequence != 0 }

// Handle is a volume's device opened for one user. Close may be called during another operation, such
// as one that was given up: that ends on this device, and those that begin afterwards fail.
type Handle interface {
	// Size is the device's size in bytes.
	Size() int64
	// Zero, Overwrite and Discard clear a range. off and length are multiples
	// of 512. They may be slow; callers pass ranges of a size they can wait for.
	//
	// Zero makes it read as zeroes in whatever way is fastest: where the
	// device guarantees that, by deallocation.
	Zero(off, length int64) error
	// Overwrite makes it read as zeroes and keeps it allocated.
	Overwrite(off, length int64) error
	// Discard hints that the contents are not needed. What is read
	// afterwards is not known. A device that cannot discard is no error.
	Discard(off, length int64) error
	// ReadAt and WriteAt move bytes past the page cache or through it. off and
	// the length are multiples of 4096.
	io.ReaderAt
	io.WriterAt
	// Uncached has ReadAt and WriteAt bypass the page cache from now on, where the device
	// can do that. Their buffers must then be aligned as large ones of make are.
	Uncached()
	// Sync returns once everything zeroed or written before is durable.
	Sync() error
	// Written marks how much was written to the device so far. Two equal marks, of two
	// handles too, mean that nothing was written in between. What is in the page cache
	// counts once it is written, as by Sync. ErrNotCounted when an administrator has the
	// kernel not count that.
	Written() (WriteMark, error)
	// CountWrites has the kernel count that from now on, or is ErrNotCounted.
	CountWrites() error
	// Close closes the device.
	Close() error
}

// handle is the kernel's Handle.
type handle struct {
	f    *os.File
	size int64
	// noPunch is set once the device refused to zero by deallocation.
	noPunch bool
	number  Number
}

// Open opens a block device for one user. Its node must lead to the device of
// the number, or it is ErrNotFound. An exclusive Handle is refused, with
// ErrClaimed, while the device is mounted or mapped, which says what lies on it,
// and as long as it is open the kernel refuses mounts and mappings.
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

// check compares what was opened with the number, and reads the size.
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

// use calls do with the device's descriptor. That stays open until do returns, also when Close is
// called meanwhile; after Close, use fails: the number may be that of another file by then.
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

// allocate is fallocate(2), by which the kernel clears ranges of devices.
func (d *handle) allocate(mode uint32, off, length int64) error {
	return d.use(func(fd int) error { return unix.Fallocate(fd, mode|unix.FALLOC_FL_KEEP_SIZE, off, length) })
}

func (d *handle) Size() int64 { return d.size }

// Zero lets the device deallocate the range where it guarantees zeroes
// afterwards, and otherwise has the kernel write them, offloaded or not. Both are the command
// write-zeroes. What a discarded range reads as Linux does not say: discard_zeroes_data is
// always 0.
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

// Uncached implements Handle. A device that cannot do it goes through the page cache.
func (d *handle) Uncached() {
	_ = d.use(func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT)
		}
		return err
	})
}

// Fields of a device's file stat in sysfs, counted from zero (Linux, block/stat.rst).
const (
	statWritten   = 6
	statDiscarded = 13
)

// bootID is where the kernel names its own run, see random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// folder is the device's in sysfs.
func (d *handle) folder() string { return "/sys/dev/block/" + d.number.String() }

// iostats is the file in that folder that has 0 where the kernel does not count.
const iostats = "queue/iostats"

// CountWrites implements Handle. Linux 6.1 has 0 there for each device of the device mapper, and
// counts all the same; newer kernels begin with 1, and heed it.
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

// counted is ErrNotCounted when the kernel does not count what is written.
func (d *handle) counted() error {
	if attribute(d.folder(), iostats) == "0" {
		return fmt.Errorf("%s: %w: %s/%s is 0", d.f.Name(), ErrNotCounted, d.folder(), iostats)
	}
	return nil
}

// Written implements Handle.
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
