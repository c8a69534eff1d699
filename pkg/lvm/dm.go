package lvm

import (
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
)

// sector is the unit of all positions in device-mapper tables, in bytes.
const sector = devmapper.SectorSize

// dmError is an error of the device mapper that matches one of this package, too.
type dmError struct {
	error
	is error
}

func (e dmError) Unwrap() []error { return []error{e.error, e.is} }

// fromKernel has errors of the device mapper match ErrNotFound, ErrBusy and
// ErrUnavailable.
func fromKernel(err error) error {
	switch {
	case errors.Is(err, devmapper.ErrNotFound):
		return dmError{err, ErrNotFound}
	case errors.Is(err, devmapper.ErrBusy):
		return dmError{err, ErrBusy}
	case errors.Is(err, devmapper.ErrUnavailable):
		return dmError{err, ErrUnavailable}
	}
	return err
}

// dmStatus asks the kernel for a device by its device-mapper name. It opens
// no device and runs nothing. ErrNotFound when there is none.
func dmStatus(name string) (devmapper.Device, error) {
	d, err := devmapper.Status(name)
	return d, fromKernel(err)
}

// dmTable asks the kernel for the table of a device by its name.
func dmTable(name string) ([]devmapper.Target, error) {
	targets, err := devmapper.Table(name)
	return targets, fromKernel(err)
}

// dmTableOf asks for the table of a device by its number.
func dmTableOf(n blockdev.Number) ([]devmapper.Target, error) {
	targets, err := devmapper.TableOf(n.Major, n.Minor)
	return targets, fromKernel(err)
}

// dmTableStatus asks for the status of a device of one target: the target's
// kind and what it says of itself. It runs nothing and reads no disk.
func dmTableStatus(name string) (kind, params string, err error) {
	targets, err := devmapper.TableStatus(name)
	switch {
	case err != nil:
		return "", "", fromKernel(err)
	case len(targets) == 0:
		// LVM was killed between making the device and giving it a table.
		return "", "", fmt.Errorf("device-mapper device %s has no table: %w", name, ErrNotFound)
	case len(targets) != 1:
		return "", "", fmt.Errorf("device-mapper device %s has %d targets, want one", name, len(targets))
	}
	return targets[0].Kind, targets[0].Params, nil
}

// dmList lists all device-mapper devices.
func dmList() ([]devmapper.Entry, error) {
	list, err := devmapper.List()
	return list, fromKernel(err)
}

// dmRemove removes a device. ErrNotFound when there is none, ErrBusy while
// it is open.
func dmRemove(name string) error { return fromKernel(devmapper.Remove(name)) }

// dmSectors is how long a device's table is, read without the table's contents
// being kept.
func dmSectors(name string) (int64, error) {
	d, err := dmStatus(name)
	if err != nil {
		return 0, err
	}
	return blockdev.Sectors(numberOf(d))
}

// numberOf is the number of a device-mapper device.
func numberOf(d devmapper.Device) blockdev.Number {
	return blockdev.Number{Major: d.Major, Minor: d.Minor}
}
