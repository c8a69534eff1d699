package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// What a user writes into a volume may look like a disk of a volume group, of the group that the
// volume is in, too. LVM sees the volume itself in no case (scan_lvs=0), but all that others
// make of it: the kubelet attaches a loop device to each raw volume, and the host's udev may make
// an array, a cache or a mapping of what it finds there. So no command, and nothing here, looks at a
// device if it is, or lies at any depth on,
//
//   - a logical volume, or an encrypted device of one,
//   - a loop device that is attached to the node of a block device. One that is attached to a
//     regular file is the administrator's, wherever the file is.
//
// A command is given the paths of devices that were looked at just before; a scan looks once more,
// at what it found.

// examine returns an ErrUserData when the contents of the device at a path are a user's, and
// another error when that cannot be known.
func (d *disks) examine(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	_, err := blockdev.Do(ctx, &d.layers, path, func(path string) (struct{}, error) {
		return struct{}{}, examineLayers(path)
	})
	return err
}

func examineLayers(path string) error {
	n, err := blockdev.NumberOf(path)
	if err != nil {
		return err
	}
	layers, err := blockdev.Layers(n)
	if err != nil {
		return err
	}
	if why := usersData(layers); why != "" {
		return fmt.Errorf("%s: %w: %s", path, ErrUserData, why)
	}
	return nil
}

// examined are those of the devices that are there now, and that may be looked at. ErrUserData
// when another device has the path of one, which is an ErrNotFound, so that the caller scans.
func (d *disks) examined(devices []string) ([]string, error) {
	var there []string
	for _, path := range devices {
		switch err := d.examine(path); {
		case err == nil:
			there = append(there, path)
		case errors.Is(err, ErrUserData):
			return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	return there, nil
}

// confirmLayers returns an error unless all devices of a scanned group may be looked at.
func (d *disks) confirmLayers(g *Group) error {
	for _, pv := range g.Devices {
		if pv.Missing || !strings.HasPrefix(pv.Path, "/dev/") {
			continue
		}
		if err := d.examine(pv.Path); err != nil {
			return fmt.Errorf("volume group %q: %w", g.Name, err)
		}
	}
	return nil
}

// withoutUsers leaves the devices that may be looked at, and notes the others. Of these one thing is read, for
// the administrator, as the host's own LVM does look at them: whether they show the UUID of a group that
// is known.
func (d *disks) withoutUsers(all []blockdev.Device) []blockdev.Device {
	var excluded []Excluded
	all = slices.DeleteFunc(all, func(b blockdev.Device) bool {
		if b.UserData != "" && usersMapping(b.Mapping) == "" {
			excluded = append(excluded, Excluded{Path: b.Path, Reason: strings.TrimPrefix(b.UserData, b.Path+": ")})
		}
		return b.UserData != ""
	})
	uuids := make([]string, len(excluded))
	var reading sync.WaitGroup
	for i := range excluded {
		reading.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
			defer cancel()
			if head, err := blockdev.Do(ctx, &d.reads, excluded[i].Path, ondisk.ReadHead); err == nil {
				uuids[i] = head.UUID
			}
		})
	}
	reading.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, g := range d.groups {
		for i, uuid := range uuids {
			if uuid != "" && uuid == g.pin.UUID {
				excluded[i].Imitates = name
			}
		}
	}
	d.excluded = excluded
	return all
}

// usersMapping says why the contents of a mapping are a user's, or nothing.
func usersMapping(m blockdev.Mapping) string {
	switch {
	case m.LogicalVolume:
		return "logical volume " + m.Name
	case strings.HasPrefix(m.Name, "carve."):
		return "encrypted volume " + m.Name
	}
	return ""
}

// usersData says why the contents of the first of the layers are a user's, or nothing.
func usersData(layers []blockdev.Layer) string {
	loop := ""
	for _, l := range layers {
		if why := usersMapping(l.Mapping); why != "" {
			return "it lies on the " + why
		}
		if l.OverDevice {
			loop = l.Name
		}
	}
	if loop != "" {
		return "it lies on " + loop + ", which is attached to a block device"
	}
	return ""
}
