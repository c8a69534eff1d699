package lvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// dmTableStatusCode is _IOWR(0xfd, 12, struct dm_ioctl).
	dmTableStatusCode = 0xc138fd0c
	// dmNoFlushFlag leaves the pool's unwritten metadata unwritten: asking must
	// not cost a commit.
	dmNoFlushFlag    = 1 << 11
	dmBufferFullFlag = 1 << 8
)

// dmTargetSpec is struct dm_target_spec; the target's parameters follow it.
type dmTargetSpec struct {
	start, length uint64
	status        int32
	next          uint32
	targetType    [16]byte
}

// dmTableStatus asks the kernel for the status of a device of one target: the
// target's type and what it says of itself. It runs nothing and reads no disk.
// ErrNotFound when there is no such device.
func dmTableStatus(name string) (kind, params string, err error) {
	const size = 4096
	var buf struct {
		dmIoctl
		rest [size - unsafe.Sizeof(dmIoctl{})]byte
	}
	if len(name) >= len(buf.name) {
		return "", "", fmt.Errorf("device-mapper name %q is too long", name)
	}
	control, err := os.OpenFile(dmControl, os.O_RDWR, 0)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer control.Close()
	buf.version = [3]uint32{4, 0, 0}
	buf.dataSize = uint32(unsafe.Sizeof(buf))
	buf.dataStart = uint32(unsafe.Sizeof(dmIoctl{}))
	buf.flags = dmNoFlushFlag
	copy(buf.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), dmTableStatusCode, uintptr(unsafe.Pointer(&buf)))
	runtime.KeepAlive(control)
	switch {
	case errors.Is(errno, unix.ENXIO):
		return "", "", fmt.Errorf("device-mapper device %s: %w", name, ErrNotFound)
	case errno != 0:
		return "", "", fmt.Errorf("device-mapper device %s: %w", name, errno)
	case buf.flags&dmBufferFullFlag != 0 || buf.targetCount != 1:
		return "", "", fmt.Errorf("device-mapper device %s: status of %d targets, want one", name, buf.targetCount)
	}
	at := int(buf.dataStart) - int(unsafe.Sizeof(dmIoctl{}))
	header := int(unsafe.Sizeof(dmTargetSpec{}))
	if at < 0 || at+header > len(buf.rest) {
		return "", "", fmt.Errorf("device-mapper device %s: malformed status", name)
	}
	var spec dmTargetSpec
	data := buf.rest[at:]
	spec.start = binary.NativeEndian.Uint64(data)
	spec.length = binary.NativeEndian.Uint64(data[8:])
	copy(spec.targetType[:], data[24:])
	return cString(spec.targetType[:]), cString(data[header:]), nil
}

// cString is what stands before the first zero byte.
func cString(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

// parsePoolStatus reads what the kernel's thin-pool target says of itself
// (Documentation/admin-guide/device-mapper/thin-provisioning.rst):
//
//	TRANSACTION USED/TOTAL USED/TOTAL HELD_ROOT MODE DISCARD FULL CHECK WATERMARK
//
// where the first pair counts metadata blocks and the second data blocks.
// Kernels may leave out what comes at the end.
func parsePoolStatus(params string) (PoolStatus, error) {
	fields := strings.Fields(params)
	if len(fields) == 1 && (fields[0] == "Fail" || fields[0] == "Error") {
		return PoolStatus{Failed: true}, nil
	}
	if len(fields) < 5 {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: want at least 5 fields", params)
	}
	var s PoolStatus
	var err error
	if s.MetadataUsed, s.MetadataTotal, err = parseFullness(fields[1]); err != nil {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: metadata: %w", params, err)
	}
	if s.DataUsed, s.DataTotal, err = parseFullness(fields[2]); err != nil {
		return PoolStatus{}, fmt.Errorf("thin pool status %q: data: %w", params, err)
	}
	for _, f := range fields[4:] {
		switch f {
		case "ro":
			s.ReadOnly = true
		case "out_of_data_space":
			s.OutOfData = true
		case "queue_if_no_space":
			s.QueuesWhenFull = true
		case "needs_check":
			s.NeedsCheck = true
		}
	}
	return s, nil
}

// parseFullness reads USED/TOTAL.
func parseFullness(s string) (used, total int64, err error) {
	a, b, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, fmt.Errorf("%q is not USED/TOTAL", s)
	}
	if used, err = strconv.ParseInt(a, 10, 64); err != nil {
		return 0, 0, err
	}
	if total, err = strconv.ParseInt(b, 10, 64); err != nil {
		return 0, 0, err
	}
	if used < 0 || used > total {
		return 0, 0, fmt.Errorf("%q is not USED/TOTAL", s)
	}
	return used, total, nil
}
