// Package devmapper talks to the kernel's device mapper through its control device
// (linux/dm-ioctl.h, version 4). It runs nothing, reads no disk, and opens no other device.
// Names are device-mapper names; positions and lengths are in sectors of SectorSize bytes. All
// functions are safe for concurrent use.
package devmapper

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SectorSize is the unit of positions in tables, in bytes.
const SectorSize = 512

// Errors that callers handle differently.
var (
	ErrNotFound = errors.New("no such device-mapper device")
	ErrBusy     = errors.New("device-mapper device in use")
	// ErrUnavailable: the control device cannot be opened. It also matches fs.ErrNotExist if
	// the kernel has no device mapper.
	ErrUnavailable = errors.New("the kernel's device mapper is not available")
)

const control = "/dev/mapper/control"

// Each command is _IOWR(0xfd, N, struct dm_ioctl).
const (
	listDevices   = 0xc138fd02
	devCreate     = 0xc138fd03
	devRemove     = 0xc138fd04
	devSuspend    = 0xc138fd06 // without flagSuspended it resumes
	devStatus     = 0xc138fd07
	tableLoad     = 0xc138fd09
	tableClear    = 0xc138fd0a
	tableStatus   = 0xc138fd0c
	targetMessage = 0xc138fd0e
	targetVersion = 0xc138fd11 // since Linux 5.4
)

const (
	flagSuspended       = 1 << 1
	flagStatusTable     = 1 << 4
	flagActivePresent   = 1 << 5
	flagInactivePresent = 1 << 6
	flagBufferFull      = 1 << 8
	// flagSkipLockFS lets a table be replaced without freezing the file system.
	flagSkipLockFS = 1 << 10
	// flagNoFlush keeps a target from writing out its state: a status must not cost a commit.
	flagNoFlush = 1 << 11
	// flagSecureData makes the kernel zero its copies of the input and output.
	flagSecureData = 1 << 15
)

// request is struct dm_ioctl.
type request struct {
	version     [3]uint32
	dataSize    uint32
	dataStart   uint32
	targetCount uint32
	openCount   int32
	flags       uint32
	eventNr     uint32
	_           uint32
	dev         uint64
	name        [128]byte
	uuid        [129]byte
	_           [7]byte
}

const headerSize = int(unsafe.Sizeof(request{}))

// MaxName is the longest device name, in bytes.
const MaxName = len(request{}.name) - 1

// maxAnswer bounds the kernel's answers. A list of 100,000 devices takes 16 MB, a table of
// 10,000 targets 1 MB.
const maxAnswer = 64 << 20

func named(name string) (request, error) {
	var r request
	if len(name) > MaxName {
		return r, fmt.Errorf("device-mapper name %q has more than %d bytes", name, MaxName)
	}
	copy(r.name[:], name)
	return r, nil
}

// buffer aligns memory for a request.
func buffer(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
}

// ask sends the request at the beginning of memory, which must be aligned for it, and sets its
// version and sizes. The kernel answers in place.
func ask(command uintptr, memory []byte) (*request, error) {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer f.Close()
	r := (*request)(unsafe.Pointer(&memory[0]))
	r.version, r.dataSize, r.dataStart = [3]uint32{4, 0, 0}, uint32(len(memory)), uint32(headerSize)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), command, uintptr(unsafe.Pointer(r)))
	runtime.KeepAlive(f)
	switch {
	case errno == 0:
		return r, nil
	case errors.Is(errno, unix.ENXIO):
		return r, ErrNotFound
	case errors.Is(errno, unix.EBUSY):
		return r, fmt.Errorf("%w: %w", ErrBusy, errno)
	}
	return r, errno
}

// askPlain is ask for a request without data. It repeats a request that a signal interrupts:
// the kernel waits for writes before it suspends a device, undoes the request, and returns
// EINTR.
func askPlain(command uintptr, r request) (request, error) {
	for {
		answer := r
		_, err := ask(command, unsafe.Slice((*byte)(unsafe.Pointer(&answer)), headerSize))
		if !errors.Is(err, unix.EINTR) {
			return answer, err
		}
	}
}

// askLong is ask for an answer of any length: the kernel reports memory that is too small. It
// returns the answer and all of the memory.
func askLong(command uintptr, r request, size int) (*request, []byte, error) {
	for ; size <= maxAnswer; size *= 4 {
		memory := buffer(size)
		*(*request)(unsafe.Pointer(&memory[0])) = r
		answer, err := ask(command, memory)
		switch {
		case errors.Is(err, unix.EINTR):
			size /= 4
		case err != nil:
			return nil, nil, err
		case answer.flags&flagBufferFull == 0:
			return answer, memory, nil
		}
	}
	return nil, nil, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
}
