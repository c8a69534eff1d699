package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Device is what the kernel says of a device.
type Device struct {
	// Major and Minor are its number.
	Major, Minor uint32
	// UUID is the name that it was made with besides, or "".
	UUID string
	// OpenCount counts who has it open: programs, mounts, and devices on it.
	OpenCount int
	// Active: it has a table in use. Without one it maps nothing.
	Active bool
	// Loaded: a table waits to be taken into use.
	Loaded bool
	// Suspended: what is written to it waits.
	Suspended bool
}

func (r *request) device() Device {
	uuid, _, _ := bytes.Cut(r.uuid[:], []byte{0})
	return Device{
		Major: unix.Major(r.dev), Minor: unix.Minor(r.dev), UUID: string(uuid), OpenCount: int(r.openCount),
		Active: r.flags&flagActivePresent != 0, Loaded: r.flags&flagInactivePresent != 0, Suspended: r.flags&flagSuspended != 0,
	}
}

// about asks something plain of a device. what says what, for the error.
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

// Status asks for a device. ErrNotFound when there is none.
func Status(name string) (Device, error) { return about(name, "asking for", devStatus, 0, "") }

// Create makes a device without a table. uuid has at most 128 bytes.
func Create(name, uuid string) error {
	if len(uuid) >= len(request{}.uuid) {
		return fmt.Errorf("device-mapper UUID %q is too long", uuid)
	}
	_, err := about(name, "making", devCreate, 0, uuid)
	return err
}

// Remove removes a device. ErrNotFound when there is none, ErrBusy while a process
// has it open. Its node in /dev/mapper, which others make, stays.
func Remove(name string) error {
	_, err := about(name, "removing", devRemove, 0, "")
	return err
}

// Resume brings the table that was loaded last into use, without freezing a file
// system on the device.
func Resume(name string) (Device, error) {
	return about(name, "resuming", devSuspend, flagSkipLockFS, "")
}

// Clear drops a device's table that was loaded and is not in use.
func Clear(name string) error {
	_, err := about(name, "clearing", tableClear, 0, "")
	return err
}

// Entry is a device in the kernel's list of all.
type Entry struct {
	Name string
	// Major and Minor are its number.
	Major, Minor uint32
}

// List lists all devices, those without a table, too, which sysfs does not
// show.
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

// parseList reads struct dm_name_list: the device, the offset of the next entry,
// and a name that a zero byte ends.
func parseList(data []byte) ([]Entry, error) {
	const head = 12
	var list []Entry
	for {
		if head > len(data) {
			return nil, errors.New("the list is cut off")
		}
		dev, next := binary.NativeEndian.Uint64(data), int(binary.NativeEndian.Uint32(data[8:]))
		if dev == 0 {
			return list, nil // there is none at all
		}
		name, _, _ := bytes.Cut(data[head:min(len(data), head+len(request{}.name))], []byte{0})
		list = append(list, Entry{string(name), unix.Major(dev), unix.Minor(dev)})
		if next == 0 {
			return list, nil
		}
		data = data[min(next, len(data)):]
	}
}

// ProvideTarget has the kernel load the module of a kind of target, such as
// "thin-pool", unless it has it already. Programs that load modules are on the
// host, and a container can neither see them nor has the rights for them; asked for
// a target's version, the kernel runs one by itself, in the host's root.
//
// known is false when there is no such target to be had. A kernel before Linux 5.4
// cannot be asked: errors.ErrUnsupported.
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
