package luks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's device-mapper control interface (linux/dm-ioctl.h, version 4), as
// far as finding and removing mappings takes. cryptsetup does not remove one whose
// making was interrupted, and reads the header before it removes any.
const (
	dmControl = "/dev/mapper/control"
	// Each is _IOWR(0xfd, N, struct dm_ioctl).
	dmListDevices = 0xc138fd02
	dmDevRemove   = 0xc138fd04
	dmDevStatus   = 0xc138fd07

	dmSuspended   = 1 << 1
	dmActiveTable = 1 << 5
	dmBufferFull  = 1 << 8

	// maxNames bounds the list of all devices: more than 100,000 of them.
	maxNames = 16 << 20
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

// dmHeader is the size of a dmIoctl.
const dmHeader = int(unsafe.Sizeof(dmIoctl{}))

// dmCall asks something of the kernel, with a buffer that begins with a dmIoctl.
// ENXIO: there is no such device. What a signal interrupts is asked again.
func dmCall(command uintptr, words []uint64, name string) (*dmIoctl, error) {
	control, err := os.OpenFile(dmControl, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unix.ENXIO // Without a device-mapper there are no mappings.
	}
	if err != nil {
		return nil, err
	}
	defer control.Close()
	d := (*dmIoctl)(unsafe.Pointer(&words[0]))
	for {
		*d = dmIoctl{version: [3]uint32{4, 0, 0}, dataSize: uint32(8 * len(words)), dataStart: uint32(dmHeader)}
		copy(d.name[:], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), command, uintptr(unsafe.Pointer(d)))
		runtime.KeepAlive(control)
		switch {
		case errno == 0:
			return d, nil
		case errno != unix.EINTR:
			return nil, errno
		}
	}
}

// Mapping implements Interface by one ioctl. A device of that name that
// cryptsetup did not make is none.
func (c *Cryptsetup) Mapping(volume string) (Mapping, bool, error) {
	name := MappingPrefix + volume
	if len(name) >= len(dmIoctl{}.name) {
		return Mapping{}, false, nil // The kernel has no names as long.
	}
	d, err := dmCall(dmDevStatus, make([]uint64, dmHeader/8), name)
	switch {
	case errors.Is(err, unix.ENXIO):
		return Mapping{}, false, nil
	case err != nil:
		return Mapping{}, false, fmt.Errorf("ask for the mapping of volume %s: %w", volume, err)
	case !bytes.HasPrefix(d.uuid[:], []byte(UUIDPrefix)):
		return Mapping{}, false, nil
	}
	return Mapping{Major: unix.Major(d.dev), Minor: unix.Minor(d.dev), Whole: d.flags&(dmActiveTable|dmSuspended) == dmActiveTable}, true, nil
}

// Mappings implements Interface. sysfs would not tell of a mapping without a table.
func (c *Cryptsetup) Mappings() ([]string, error) {
	for size := 64 << 10; size <= maxNames; size *= 4 {
		words := make([]uint64, size/8)
		d, err := dmCall(dmListDevices, words, "")
		switch {
		case errors.Is(err, unix.ENXIO):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("look for mappings: %w", err)
		case d.flags&dmBufferFull != 0:
			continue
		}
		var volumes []string
		for _, name := range names(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)[dmHeader:]) {
			volume, ours := strings.CutPrefix(name, MappingPrefix)
			if !ours {
				continue
			}
			_, there, err := c.Mapping(volume)
			if err != nil {
				return nil, err
			}
			if there {
				volumes = append(volumes, volume)
			}
		}
		return volumes, nil
	}
	return nil, errors.New("look for mappings: there are too many devices")
}

// names reads struct dm_name_list: the device, the offset of the next entry, and
// a name that a zero byte ends.
func names(data []byte) []string {
	const head = 12
	var all []string
	for len(data) > head && binary.NativeEndian.Uint64(data) != 0 {
		name, _, _ := bytes.Cut(data[head:], []byte{0})
		all = append(all, string(name))
		next := int(binary.NativeEndian.Uint32(data[8:]))
		if next <= 0 || next > len(data) {
			break
		}
		data = data[next:]
	}
	return all
}

const (
	// busyPatience is for how long Close waits for somebody to let go of the
	// mapping: a program that looks what is on a new device does so soon.
	busyPatience = 2 * time.Second
	busyInterval = 50 * time.Millisecond
)

// Close implements Interface. It reads nothing of the device, which may be dead.
func (c *Cryptsetup) Close(ctx context.Context, volume string) error {
	wrap := func(err error) error { return fmt.Errorf("close the encrypted volume %s: %w", volume, err) }
	if _, there, err := c.Mapping(volume); err != nil || !there {
		return wrap(cmp.Or(err, error(unix.ENXIO)))
	}
	for begin := time.Now(); ; {
		_, err := dmCall(dmDevRemove, make([]uint64, dmHeader/8), MappingPrefix+volume)
		switch {
		case err == nil:
			// A node that is left would stand for another device some day.
			if err := os.Remove(Path(volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return wrap(err)
			}
			return nil
		case !errors.Is(err, unix.EBUSY):
			return wrap(err)
		case time.Since(begin) > busyPatience:
			return wrap(fmt.Errorf("%w: %w", ErrInUse, err))
		}
		select {
		case <-ctx.Done():
			return wrap(context.Cause(ctx))
		case <-time.After(busyInterval):
		}
	}
}

// cleared is how much Clear overwrites at either end, in bytes: all known
// signatures lie within.
const cleared = 1 << 20

// Clear implements Interface.
func (c *Cryptsetup) Clear(device string) error {
	// O_EXCL: not beside a file system that is mounted.
	f, err := os.OpenFile(device, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("clear the encrypted volume: %w", err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		zeroes := make([]byte, min(cleared, size))
		for _, at := range []int64{0, size - int64(len(zeroes))} {
			if _, writeErr := f.WriteAt(zeroes, at); writeErr != nil {
				err = writeErr
			}
		}
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("clear the encrypted volume: %w", err)
	}
	return nil
}
