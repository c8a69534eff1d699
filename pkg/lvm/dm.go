package lvm

import (
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
)

const sector = devmapper.SectorSize

type dmError struct {
	error
	is error
}

func (e dmError) Unwrap() []error { return []error{e.error, e.is} }

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

func dmStatus(name string) (devmapper.Device, error) {
	d, err := devmapper.Status(name)
	return d, fromKernel(err)
}

func dmTable(name string) ([]devmapper.Target, error) {
	targets, err := devmapper.Table(name)
	return targets, fromKernel(err)
}

func dmTableOf(n blockdev.Number) ([]devmapper.Target, error) {
	targets, err := devmapper.TableOf(n.Major, n.Minor)
	return targets, fromKernel(err)
}

// dmTableStatus is for devices with one target.
func dmTableStatus(name string) (kind, params string, err error) {
	targets, err := devmapper.TableStatus(name)
	switch {
	case err != nil:
		return "", "", fromKernel(err)
	case len(targets) == 0:
		// LVM was killed between creating the device and loading its table.
		return "", "", fmt.Errorf("device-mapper device %s has no table: %w", name, ErrNotFound)
	case len(targets) != 1:
		return "", "", fmt.Errorf("device-mapper device %s has %d targets, want one", name, len(targets))
	}
	return targets[0].Kind, targets[0].Params, nil
}

func dmList() ([]devmapper.Entry, error) {
	list, err := devmapper.List()
	return list, fromKernel(err)
}

func dmRemove(name string) error { return fromKernel(devmapper.Remove(name)) }

// dmSectors returns the length of a device's table without reading the table, which may hold a
// key.
func dmSectors(name string) (int64, error) {
	d, err := dmStatus(name)
	if err != nil {
		return 0, err
	}
	return blockdev.Sectors(numberOf(d))
}

func numberOf(d devmapper.Device) blockdev.Number {
	return blockdev.Number{Major: d.Major, Minor: d.Minor}
}
