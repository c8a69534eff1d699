package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Device is the kernel's view of a device.
type Device struct {
	Major, Minor uint32
	// UUID may be empty.
	UUID string
	// OpenCount counts programs, mounts, and devices on top.
	OpenCount int
	// Active means that it has a live table. Without one it maps nothing.
	Active bool
	// Loaded means that it has an inactive table.
	Loaded    bool
	Suspended bool
}

func (r *request) device() Device {
	uuid, _, _ := bytes.Cut(r.uuid[:], []byte{0})
	return Device{
		Major: unix.Major(r.dev), Minor: unix.Minor(r.dev), UUID: string(uuid), OpenCount: int(r.openCount),
		Active: r.flags&flagActivePresent != 0, Loaded: r.flags&flagInactivePresent != 0, Suspended: r.flags&flagSuspended != 0,
	}
}

// about sends a request without data about a device. what is for the error.
func about(name, what string, command uintptr, flags uint32, uuid string) (Device, error) {
	r, err := named(name)
	if err != nil {
		return Device{}, err
	}
	r.flags = flags
	copy(r.uuid[:], uuid)
	if r, err = askPlain(command, r); err != nil {
		return Device{}, fmt.Errorf("%s device-mapper device %s: %w", what, name, err)
	}
	return r.device(), nil
}

// Status returns ErrNotFound if the device does not exist.
func Status(name string) (Device, error) { return about(name, "asking for", devStatus, 0, "") }

// Create creates a device without a table. uuid has at most 128 bytes.
func Create(name, uuid string) error {
	if len(uuid) >= len(request{}.uuid) {
		return fmt.Errorf("device-mapper UUID %q is too long", uuid)
	}
	_, err := about(name, "making", devCreate, 0, uuid)
	return err
}

// Remove removes a device. It returns ErrNotFound if there is none, and ErrBusy while it is
// open. It leaves the node in /dev/mapper, which this package does not create.
func Remove(name string) error {
	_, err := about(name, "removing", devRemove, 0, "")
	return err
}

// Resume makes the table that was loaded last live, without freezing a file system on the
// device.
func Resume(name string) (Device, error) {
	return about(name, "resuming", devSuspend, flagSkipLockFS, "")
}

// Clear drops a device's inactive table.
func Clear(name string) error {
	_, err := about(name, "clearing", tableClear, 0, "")
	return err
}

// Entry is a device in List.
type Entry struct {
	Name         string
	Major, Minor uint32
}

// List lists all devices, including those without a table, which sysfs does not show.
func List() ([]Entry, error) {
	_, memory, err := askLong(listDevices, request{}, 64<<10)
	if err == nil {
		var list []Entry
		if list, err = parseList(memory[headerSize:]); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("listing device-mapper devices: %w", err)
}

// parseList parses struct dm_name_list: the device, the offset of the next entry, and a
// zero-terminated name.
func parseList(data []byte) ([]Entry, error) {
	const head = 12
	var list []Entry
	for {
		if head > len(data) {
			return nil, errors.New("the list is cut off")
		}
		dev, next := binary.NativeEndian.Uint64(data), int(binary.NativeEndian.Uint32(data[8:]))
		if dev == 0 {
			return list, nil // no device exists
		}
		name, _, _ := bytes.Cut(data[head:min(len(data), head+len(request{}.name))], []byte{0})
		list = append(list, Entry{string(name), unix.Major(dev), unix.Minor(dev)})
		if next == 0 {
			return list, nil
		}
		data = data[min(next, len(data)):]
	}
}

// ProvideTarget makes the kernel load the module of a target kind, such as "thin-pool", if
// necessary. A container neither has nor may run the programs that load modules; when asked for
// a target's version, the kernel runs one itself, in the host's root.
//
// known is false if the target is not available. Before Linux 5.4 it returns
// errors.ErrUnsupported.
func ProvideTarget(kind string) (known bool, err error) {
	r, err := named(kind)
	if err != nil {
		return false, err
	}
	switch _, err = askPlain(targetVersion, r); {
	case errors.Is(err, unix.EINVAL):
		return false, nil
	case errors.Is(err, unix.ENOTTY):
		return false, fmt.Errorf("asking for device-mapper target %s: %w", kind, errors.ErrUnsupported)
	case err != nil:
		return false, fmt.Errorf("asking for device-mapper target %s: %w", kind, err)
	}
	return true, nil
}
