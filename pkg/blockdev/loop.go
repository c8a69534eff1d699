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
	// loopTries bounds the retries when another process takes a free device first.
	loopTries = 16
)

// AttachFile attaches a file to a loop device of at least size bytes and returns the device's
// path. It creates a missing file, fully allocated, so that a full file system does not fail
// the device; the file gets its name only when complete. It grows a smaller file and keeps a
// larger one. It does not attach a file again, but fills holes in it.
//
// Callers must not attach the same file concurrently.
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
	// Start over if an earlier attempt left one.
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

// smallestStep is the least that allocate allocates per call.
const smallestStep = 1 << 20

// allocate gives a file blocks for all of its bytes and keeps its contents.
//
// When a signal interrupts a call (EINTR; the Go runtime sends some to itself), tmpfs undoes
// what the call did, so each interruption makes the steps smaller.
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

// attachedLoop returns the loop device of a file, or "". It compares inodes: the path may be
// another container's.
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

// LoopFile is the file that a loop device is attached to, with the device's offset in it. It is
// zero for no file.
type LoopFile struct{ Device, Inode, Offset uint64 }

// LoopFileOf asks the driver of a loop device for its file, whose file system may never answer.
// It returns ErrNotFound if the device is attached to nothing, or is not a loop device.
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

// canDirect reports whether direct I/O to a file works. The loop driver falls back if the file
// system does not support it. But an overlay claims support even over a file system without,
// and then all I/O fails.
func canDirect(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

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

// keepAllocated keeps discards from punching holes into the file: the file system below it
// could fill up under admitted volumes. If sysfs is read-only, the next AttachFile fills the
// holes.
func keepAllocated(device string) {
	_ = os.WriteFile("/sys/block/"+filepath.Base(device)+"/queue/discard_max_bytes", []byte("0"), 0)
}
