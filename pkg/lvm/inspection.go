package lvm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// inspection asks the kernel for the devices of volumes and opens them. It runs no command.
type inspection struct{ disks *disks }

// Device implements Groups by asking the kernel's device mapper, and holding
// the device node against what it says.
func (i inspection) Device(group, volume string) (Device, error) {
	d, err := dmStatus(layout.DeviceName(group, volume))
	if err != nil {
		return Device{}, err
	}
	if !d.Active {
		return Device{}, fmt.Errorf("device-mapper device of %s/%s has no table: %w", group, volume, ErrNotFound)
	}
	path := "/dev/" + group + "/" + volume
	if err := blockdev.Check(path, numberOf(d)); err != nil {
		return Device{}, err
	}
	return Device{
		Path:  path,
		Major: d.Major, Minor: d.Minor,
		OpenCount: d.OpenCount,
		Suspended: d.Suspended,
	}, nil
}

// Numbers implements Groups.
func (i inspection) Numbers(group string) (Numbers, error) {
	list, err := dmList()
	if err != nil {
		return Numbers{}, err
	}
	return numbersOf(group, list), nil
}

func numbersOf(group string, list []devmapper.Entry) Numbers {
	n := Numbers{Volumes: map[string]blockdev.Number{}, Encrypted: map[string]blockdev.Number{}}
	prefix := layout.DeviceName(group, "")
	for _, d := range list {
		if volume, ours := strings.CutPrefix(d.Name, cryptPrefix); ours {
			n.Encrypted[volume] = blockdev.Number{Major: d.Major, Minor: d.Minor}
			continue
		}
		rest, ours := strings.CutPrefix(d.Name, prefix)
		volume := strings.ReplaceAll(rest, "--", "-")
		// A hyphen by itself is before what LVM calls a hidden layer of a volume, and
		// two at the beginning are in the name of another group.
		if ours && layout.DeviceName(group, volume) == d.Name {
			n.Volumes[volume] = blockdev.Number{Major: d.Major, Minor: d.Minor}
		}
	}
	return n
}

// Open implements Groups. Exclusive opening fails while the device is mounted
// or mapped; the device mapper's count says
// whether a process merely holds it open.
func (i inspection) Open(group, volume string) (blockdev.Handle, error) {
	return openAlone(layout.DeviceName(group, volume), group+"/"+volume)
}

// openAlone opens the device of a device-mapper name, of what messages call what.
func openAlone(name, what string) (blockdev.Handle, error) {
	before, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	path := "/dev/mapper/" + name
	dev, err := blockdev.Open(path, numberOf(before), true)
	if errors.Is(err, ErrNotFound) && before.Active {
		// The kernel has the device, and it may be mounted: a caller must not take a missing
		// or stale node for a missing device.
		if err = blockdev.MakeNode(path, numberOf(before)); err == nil {
			dev, err = blockdev.Open(path, numberOf(before), true)
		}
	}
	if err != nil {
		return nil, err
	}
	after, err := dmStatus(name)
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	if after.OpenCount > 1 {
		_ = dev.Close()
		return nil, fmt.Errorf("%s: %w: %d have it open", what, ErrBusy, after.OpenCount-1)
	}
	return dev, nil
}

// OpenInUse implements Groups.
func (i inspection) OpenInUse(group, volume string) (blockdev.Handle, error) {
	name := layout.DeviceName(group, volume)
	d, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	return blockdev.Open("/dev/mapper/"+name, numberOf(d), false)
}

// PoolStatus implements Thin.
func (i inspection) PoolStatus(group, pool string) (PoolStatus, error) {
	device, params, err := i.disks.poolStatus(group, pool)
	if err != nil {
		return PoolStatus{}, err
	}
	s, err := parsePoolStatus(params)
	if err != nil {
		return PoolStatus{}, fmt.Errorf("device-mapper device %s: %w", device, err)
	}
	return s, nil
}

// RAIDStatus implements Groups.
func (i inspection) RAIDStatus(group, volume string) (RAIDStatus, error) {
	kind, params, err := dmTableStatus(layout.DeviceName(group, volume))
	if err != nil {
		return RAIDStatus{}, err
	}
	if kind != "raid" {
		return RAIDStatus{}, fmt.Errorf("device %s/%s is not of type raid but %q", group, volume, kind)
	}
	s, err := parseRAIDStatus(params)
	if err != nil {
		return RAIDStatus{}, fmt.Errorf("device %s/%s: %w", group, volume, err)
	}
	return s, nil
}

// Mapping implements Groups: the tables in the kernel are what LVM made of its
// metadata, and cost a system call each.
func (i inspection) Mapping(group, volume string) ([]Segment, error) {
	r := &resolver{table: dmTableOf, devices: i.disks.numbers(group)}
	targets, err := dmTable(layout.DeviceName(group, volume))
	if err != nil {
		return nil, err
	}
	segments, err := r.segments(targets, 0)
	if err != nil {
		return nil, fmt.Errorf("segments of %s/%s: %w", group, volume, err)
	}
	return segments, nil
}
