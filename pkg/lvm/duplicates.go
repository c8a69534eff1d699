package lvm

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// LVM itself refuses to change or activate a group if it sees one of its physical volumes
// twice. But Carve confines commands to the devices where the last scan found the group, so it
// must look for copies here, by the labels of all devices.

func (d *disks) Duplicated() (groups []string, err error) {
	all, err := d.BlockDevices()
	if err != nil {
		return nil, err
	}
	all = d.withoutUsers(all)
	labels, _ := d.labels(all)
	duplicates := d.duplicatesAmong(all, labels)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.duplicates = duplicates
	for name, g := range d.groups {
		if len(g.paths) > 0 && len(d.duplicatesOf(g.pin, &Group{Devices: g.physical})) > 0 {
			groups = append(groups, name)
		}
	}
	return groups, nil
}

// labels returns the zero value for a label that is absent or unreadable.
func (d *disks) labels(devices []blockdev.Device) ([]ondisk.Label, []error) {
	labels, errs := make([]ondisk.Label, len(devices)), make([]error, len(devices))
	var reading sync.WaitGroup
	for i := range devices {
		reading.Go(func() {
			labels[i], errs[i] = readWithTimeout(d, devices[i].Path, func(path string) (ondisk.Label, error) {
				if err := blockdev.ReadHead(path, ondisk.LabelLength); err != nil {
					return ondisk.Label{}, err
				}
				return ondisk.ReadLabel(path)
			})
		})
	}
	reading.Wait()
	return labels, errs
}

// duplicatesAmong finds the physical volumes that are on several devices. It ignores the paths
// below a multipath device, the members below a running array, and further loop devices of the
// same file. Paths without their multipath device count, and so do the members of a stopped
// array: the array would miss writes to one of them.
func (d *disks) duplicatesAmong(devices []blockdev.Device, labels []ondisk.Label) map[string]Duplicate {
	byUUID := map[string][]*blockdev.Device{}
	for i := range devices {
		if uuid := labels[i].UUID; uuid != "" {
			byUUID[uuid] = append(byUUID[uuid], &devices[i])
		}
	}
	duplicates := map[string]Duplicate{}
	for uuid, on := range byUUID {
		if len(on) < 2 {
			continue
		}
		if on = distinct(on, d.originOf); len(on) < 2 {
			continue
		}
		copied := Duplicate{UUID: uuid}
		for _, device := range on {
			copied.Paths = append(copied.Paths, device.Path)
		}
		slices.Sort(copied.Paths)
		duplicates[uuid] = copied
	}
	return duplicates
}

type origin struct {
	// below lists the kernel names of the device's layers, its own included.
	below []string
	// file is the zero value unless it is a loop device.
	file blockdev.LoopFile
	// member is true for a member of an array, running or not.
	member bool
}

// originOf omits what it cannot find out: the device then counts as a copy.
func (d *disks) originOf(device *blockdev.Device) (o origin) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	o, _ = blockdev.Do(ctx, &d.layers, device.Path, func(path string) (o origin, err error) {
		layers, err := blockdev.Layers(device.Number)
		for _, l := range layers {
			o.below = append(o.below, l.Name)
		}
		o.file, _ = blockdev.LoopFileOf(path)
		o.member, _ = blockdev.IsArrayMember(path)
		return o, err
	})
	return o
}

// distinct keeps one of the devices with the same contents, the uppermost. It keeps array
// members only if all devices are members: one that failed out of its array shows old contents
// beside it.
func distinct(devices []*blockdev.Device, originOf func(*blockdev.Device) origin) (left []*blockdev.Device) {
	origins, same := make([]origin, len(devices)), make([]int, len(devices))
	for i, device := range devices {
		origins[i], same[i] = originOf(device), i
	}
	liesOn := func(i, j int) bool { return i != j && slices.Contains(origins[i].below, devices[j].Name) }
	sameFile := func(i, j int) bool {
		return origins[i].file != (blockdev.LoopFile{}) && origins[i].file == origins[j].file
	}
	for i := range devices {
		for j := range devices {
			if liesOn(i, j) || sameFile(i, j) {
				from, to := same[i], same[j]
				for k := range same {
					if same[k] == from {
						same[k] = to
					}
				}
			}
		}
	}
	below := make([]bool, len(devices))
	for i := range devices {
		for j := range devices {
			if liesOn(i, j) {
				for k := range devices {
					below[k] = below[k] || k == j || sameFile(k, j)
				}
			}
		}
	}
	seen := map[int]bool{}
	allMembers := !slices.ContainsFunc(origins, func(o origin) bool { return !o.member })
	for i, device := range devices {
		if origins[i].member && !allMembers || below[i] || seen[same[i]] {
			continue
		}
		seen[same[i]] = true
		left = append(left, device)
	}
	return left
}

// duplicatesOf returns the duplicates among a group's physical volumes, by identity and as
// found. found may be nil. The caller holds mu.
func (d *disks) duplicatesOf(i Identity, found *Group) (copied []Duplicate) {
	uuids := slices.Clone(i.Devices)
	if found != nil {
		uuids = append(uuids, found.Identity().Devices...)
	}
	slices.Sort(uuids)
	for _, uuid := range slices.Compact(uuids) {
		if duplicate, is := d.duplicates[uuid]; is {
			copied = append(copied, duplicate)
		}
	}
	return copied
}

func (d *disks) duplicatesOfKnown(group string) []Duplicate {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.group(group)
	return d.duplicatesOf(g.pin, &Group{Devices: g.physical})
}

func duplicated(i *Identity, found *Group, duplicates []Duplicate) Other {
	o := Other{UUID: i.UUID, Duplicates: duplicates}
	if found != nil {
		o.UUID = found.UUID
	}
	for _, duplicate := range duplicates {
		o.Paths = append(o.Paths, duplicate.Paths...)
	}
	slices.SortFunc(o.Paths, strings.Compare)
	return o
}
