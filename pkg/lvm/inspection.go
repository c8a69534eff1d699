package lvm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

type inspection struct{ disks *disks }

// Device implements Groups. It asks the device mapper and checks the device node.
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
		// A single hyphen precedes LVM's name of a hidden layer; a double one at the beginning
		// belongs to the name of another group.
		if ours && layout.DeviceName(group, volume) == d.Name {
			n.Volumes[volume] = blockdev.Number{Major: d.Major, Minor: d.Minor}
		}
	}
	return n
}

// Open implements Groups. An exclusive open fails while the device is mounted or mapped; only
// the device mapper's open count shows plain openers.
func (i inspection) Open(group, volume string) (blockdev.Handle, error) {
	return openAlone(layout.DeviceName(group, volume), group+"/"+volume)
}

func openAlone(name, what string) (blockdev.Handle, error) {
	before, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	path := "/dev/mapper/" + name
	dev, err := blockdev.Open(path, numberOf(before), true)
	if errors.Is(err, ErrNotFound) && before.Active {
		// The kernel has the device, and it may be mounted: the caller must not mistake a
		// missing or stale node for a missing device.
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

func (i inspection) OpenInUse(group, volume string) (blockdev.Handle, error) {
	name := layout.DeviceName(group, volume)
	d, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	return blockdev.Open("/dev/mapper/"+name, numberOf(d), false)
}

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

// Mapping implements Groups. The kernel's tables show how LVM applied its metadata, at one
// system call each.
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
