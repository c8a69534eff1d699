package lvm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's device-mapper control interface (linux/dm-ioctl.h, version 4),
// as far as the status of one device takes.
const (
	dmControl = "/dev/mapper/control"
	// dmDevStatus is _IOWR(0xfd, 7, struct dm_ioctl).
	dmDevStatus   = 0xc138fd07
	dmSuspendFlag = 1 << 1
)

// dmIoctl is struct dm_ioctl.
type dmIoctl struct {
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

// dmStatus asks the kernel for a device by its device-mapper name. It opens
// the device for nobody and runs nothing. ErrNotFound when there is none.
func dmStatus(name string) (dmIoctl, error) {
	var d dmIoctl
	if len(name) >= len(d.name) {
		return d, fmt.Errorf("device-mapper name %q is too long", name)
	}
	control, err := os.OpenFile(dmControl, os.O_RDWR, 0)
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer control.Close()
	d.version = [3]uint32{4, 0, 0}
	d.dataSize = uint32(unsafe.Sizeof(d))
	copy(d.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), dmDevStatus, uintptr(unsafe.Pointer(&d)))
	runtime.KeepAlive(control)
	switch {
	case errno == 0:
		return d, nil
	case errors.Is(errno, unix.ENXIO):
		return d, fmt.Errorf("device-mapper device %s: %w", name, ErrNotFound)
	default:
		return d, fmt.Errorf("device-mapper device %s: %w", name, errno)
	}
}

func (d *dmIoctl) major() uint32 { return unix.Major(d.dev) }
func (d *dmIoctl) minor() uint32 { return unix.Minor(d.dev) }
