package blockdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	loopControl = "/dev/loop-control"
	// loopTries bounds how often another free device is asked for, when
	// another process took the one before.
	loopTries = 16
)

// AttachFile makes a file available as a loop device of at least size bytes,
// and returns the device's path. A file that does not exist is made, and all
// of it allocated, so that a file system that runs full does not fail the
// device; it appears under its name only when that is done. One that
// is smaller than size is grown, one that is larger stays. A file that is
// attached already is not attached again; holes in it are filled.
//
// Callers see to it that no two of them attach the same file at once.
func AttachFile(path string, size int64) (device string, err error) {
	if err := makeFile(path, size); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("loop file: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("loop file %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", fmt.Errorf("loop file %s: it is no regular file", path)
	}
	if st.Size < size || st.Blocks*SectorSize < st.Size {
		if err := allocate(f, max(size, st.Size)); err != nil {
			return "", err
		}
	}
	if device, err = attachedLoop(&st); err != nil {
		return "", err
	}
	if device == "" {
		device, err = attachLoop(f)
	} else {
		err = updateLoop(device, max(size, st.Size))
	}
	if err != nil {
		return "", fmt.Errorf("loop file %s: %w", path, err)
	}
	keepAllocated(device)
	return device, nil
}

// makeFile makes a file with all of its blocks, unless it exists.
func makeFile(path string, size int64) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("loop file: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("loop file: %w", err)
	}
	// One that an earlier attempt left behind is begun again.
	partial := path + ".part"
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("loop file: %w", err)
	}
	err = allocate(f, size)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		_ = os.Remove(partial)
		return fmt.Errorf("loop file: %w", err)
	}
	return nil
}

// smallestStep is as little as is allocated with one call.
const smallestStep = 1 << 20

// allocate gives a file blocks for all of its bytes; what it holds stays.
//
// A call that a signal interrupts (EINTR; the Go runtime sends itself some) takes
// back on tmpfs what it did, so each interruption makes the steps smaller.
func allocate(f *os.File, size int64) error {
	for off, step := int64(0), size; off < size; {
		length := min(step, size-off)
		err := unix.Fallocate(int(f.Fd()), 0, off, length)
		switch {
		case err == nil:
			off += length
		case errors.Is(err, unix.EINTR):
			step = max(step/2, smallestStep)
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("loop file %s: its file system has too little free space for %d bytes: %w: %w", f.Name(), size, ErrNoSpace, err)
		case errors.Is(err, unix.EOPNOTSUPP):
			return fmt.Errorf("loop file %s: its file system cannot allocate files (fallocate); use one on ext4, xfs or btrfs: %w", f.Name(), err)
		default:
			return fmt.Errorf("loop file %s: allocating %d bytes: %w", f.Name(), size, err)
		}
	}
	return nil
}

// attachedLoop finds the loop device of a file, or returns an empty path. The
// kernel identifies the file by its inode: its path may be another container's.
func attachedLoop(want *unix.Stat_t) (string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		device := "/dev/" + strings.Split(file, "/")[3]
		is, err := LoopFileOf(device)
		switch {
		case errors.Is(err, ErrNotFound): // detached in this moment
		case err != nil:
			return "", err
		case is.Device == want.Dev && is.Inode == want.Ino:
			return device, nil
		}
	}
	return "", nil
}

// LoopFile is the file that a loop device is attached to, and where in it the device begins. The zero
// value is none.
type LoopFile struct{ Device, Inode, Offset uint64 }

// LoopFileOf asks the driver of a loop device for its file, whose file system may never answer.
// ErrNotFound when the device is attached to nothing, or is no loop device.
func LoopFileOf(device string) (LoopFile, error) {
	n, err := NumberOf(device)
	if err != nil {
		return LoopFile{}, err
	}
	if n.Major != loopMajor {
		return LoopFile{}, fmt.Errorf("%s: %w: it is no loop device", device, ErrNotFound)
	}
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return LoopFile{}, fmt.Errorf("the file of loop device %s cannot be read: %w", device, err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	switch {
	case errors.Is(err, unix.ENXIO):
		return LoopFile{}, fmt.Errorf("loop device %s: %w: it is attached to nothing", device, ErrNotFound)
	case err != nil:
		return LoopFile{}, fmt.Errorf("the file of loop device %s cannot be read: %w", device, err)
	}
	return LoopFile{info.Device, info.Inode, info.Offset}, nil
}

// canDirect reports whether direct I/O to a file works. The loop driver falls back by
// itself where a file system says that it does not know it, but an overlay over one
// that does not claims that it does, and then all I/O fails.
func canDirect(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// attachLoop attaches an open file to a free loop device, with direct I/O
// where its file system can do that.
func attachLoop(backing *os.File) (string, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("loop devices cannot be made: %w", err)
	}
	defer control.Close()
	config := &unix.LoopConfig{Fd: uint32(backing.Fd())}
	if canDirect(backing.Name()) {
		config.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], backing.Name())
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("no loop device is free: %w", err)
		}
		device := fmt.Sprintf("/dev/loop%d", n)
		f, err := os.OpenFile(device, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("loop device: %w", err)
		}
		err = unix.IoctlLoopConfigure(int(f.Fd()), config)
		_ = f.Close()
		if err == nil {
			return device, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("attaching to %s: %w", device, err)
		}
	}
	return "", fmt.Errorf("other processes took %d free loop devices", loopTries)
}

// updateLoop lets a loop device see that its file has grown.
func updateLoop(device string, size int64) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Seek(0, 2)
	if err != nil || now >= size {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("growing %s: %w", device, err)
	}
	return nil
}

// keepAllocated keeps discards from punching holes into the file, which would let the file
// system below it fill up under volumes that were admitted. Where sysfs
// cannot be written, the next AttachFile fills them.
func keepAllocated(device string) {
	_ = os.WriteFile("/sys/block/"+filepath.Base(device)+"/queue/discard_max_bytes", []byte("0"), 0)
}
