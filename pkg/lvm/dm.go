package lvm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's device-mapper control interface (linux/dm-ioctl.h, version 4),
// as far as the status of one device takes.
const (
	dmControl = "/dev/mapper/control"
	// dmDevStatus is _IOWR(0xfd, 7, struct dm_ioctl).
	dmDevStatus = 0xc138fd07
	// dmTableCommand is _IOWR(0xfd, 12, struct dm_ioctl).
	dmTableCommand = 0xc138fd0c
	dmSuspendFlag  = 1 << 1
	dmActiveTable  = 1 << 5
	dmStatusTable  = 1 << 4
	dmTableCutOff  = 1 << 8
	// dmNoFlush leaves what a target has not written unwritten: asking for its
	// status must not cost a commit.
	dmNoFlush = 1 << 11
	// sector is the unit of all positions in tables, in bytes.
	sector = 512
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

// dmTarget is a line of a device-mapper table. start and length are in sectors.
type dmTarget struct {
	start, length int64
	kind, params  string
}

// dmSpec is struct dm_target_spec.
type dmSpec struct {
	start, length uint64
	status        int32
	next          uint32
	kind          [16]byte
}

// dmTable asks the kernel for the table of a device by its name.
func dmTable(name string) ([]dmTarget, error) {
	var d dmIoctl
	if len(name) >= len(d.name) {
		return nil, fmt.Errorf("device-mapper name %q is too long", name)
	}
	copy(d.name[:], name)
	return readTable(d, dmStatusTable)
}

// dmTableStatus asks for the status of a device of one target: the target's
// kind and what it says of itself. It runs nothing and reads no disk.
func dmTableStatus(name string) (kind, params string, err error) {
	var d dmIoctl
	if len(name) >= len(d.name) {
		return "", "", fmt.Errorf("device-mapper name %q is too long", name)
	}
	copy(d.name[:], name)
	targets, err := readTable(d, dmNoFlush)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", name, err)
	}
	if len(targets) == 0 {
		// LVM was killed between making the device and giving it a table.
		return "", "", fmt.Errorf("device-mapper device %s has no table: %w", name, ErrNotFound)
	}
	if len(targets) != 1 {
		return "", "", fmt.Errorf("device-mapper device %s has %d targets, want one", name, len(targets))
	}
	return targets[0].kind, targets[0].params, nil
}

// dmTableOf asks for the table of a device by its number.
func dmTableOf(n deviceNumber) ([]dmTarget, error) {
	return readTable(dmIoctl{dev: unix.Mkdev(n.major, n.minor)}, dmStatusTable)
}

// maxTable bounds a table's size; a volume of 10,000 pieces takes 1 MB.
const maxTable = 64 << 20

func readTable(ask dmIoctl, flags uint32) ([]dmTarget, error) {
	control, err := os.OpenFile(dmControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer control.Close()
	const header = int(unsafe.Sizeof(dmIoctl{}))
	for size := 16 << 10; size <= maxTable; size *= 4 {
		// The kernel wants the header aligned as its 64-bit fields are.
		words := make([]uint64, size/8)
		buffer := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
		d := (*dmIoctl)(unsafe.Pointer(&words[0]))
		*d = ask
		d.version, d.dataSize, d.dataStart, d.flags = [3]uint32{4, 0, 0}, uint32(size), uint32(header), flags
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), dmTableCommand, uintptr(unsafe.Pointer(&words[0])))
		runtime.KeepAlive(control)
		switch {
		case errors.Is(errno, unix.ENXIO):
			return nil, fmt.Errorf("device-mapper device: %w", ErrNotFound)
		case errno != 0:
			return nil, fmt.Errorf("device-mapper table: %w", errno)
		case d.flags&dmTableCutOff != 0:
			continue
		}
		return parseTable(buffer[min(int(d.dataStart), size):], int(d.targetCount))
	}
	return nil, fmt.Errorf("device-mapper table: it is larger than %d bytes", maxTable)
}

// parseTable reads what the kernel answers: for each target a dm_target_spec
// and its parameters, ended by a zero byte. next is counted from the first.
func parseTable(data []byte, count int) ([]dmTarget, error) {
	const spec = int(unsafe.Sizeof(dmSpec{}))
	targets := make([]dmTarget, 0, count)
	at := 0
	for range count {
		if at < 0 || at+spec > len(data) {
			return nil, fmt.Errorf("device-mapper table is cut off after %d of %d targets", len(targets), count)
		}
		var s dmSpec
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&s)), spec), data[at:])
		params, _, _ := strings.Cut(string(data[at+spec:max(at+spec, min(int(s.next), len(data)))]), "\x00")
		kind, _, _ := strings.Cut(string(s.kind[:]), "\x00")
		targets = append(targets, dmTarget{start: int64(s.start), length: int64(s.length), kind: kind, params: params})
		at = int(s.next)
	}
	return targets, nil
}
