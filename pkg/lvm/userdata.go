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

// A user can write anything into a volume, including a forged disk of the volume's own group.
// LVM ignores volumes themselves (scan_lvs=0), but not devices on top of them: the kubelet
// attaches a loop device to each raw volume, and the host's udev may assemble an array, a cache
// or a mapping. So no command, and nothing here, reads a device that is, or lies at any depth on,
//
//   - a logical volume, or an encrypted device of one,
//   - a loop device attached to the node of a block device. One attached to a regular file is
//     the administrator's, wherever the file is.
//
// Commands get only paths that were checked just before; a scan rechecks those that it found.

// examine returns ErrUserData if a device's contents are a user's.
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

// examined returns the devices that are present. If one has a user's data, it returns an error
// that is both ErrUserData and ErrNotFound, so that the caller scans.
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

// withoutUsers records the devices with users' data and returns the others. Of the former it
// reads whether they show the UUID of a known group, for the administrator: the host's own LVM
// does read them.
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

func usersMapping(m blockdev.Mapping) string {
	switch {
	case m.LogicalVolume:
		return "logical volume " + m.Name
	case strings.HasPrefix(m.Name, "carve."):
		return "encrypted volume " + m.Name
	}
	return ""
}

// usersData returns why the first layer's contents are a user's, or "".
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
