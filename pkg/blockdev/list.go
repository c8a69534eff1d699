package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is any block device, as the kernel describes it.
type Device struct {
	// Name is the kernel's, such as nvme0n1, and Path the node of that name.
	Name, Path string
	// IDs are its names in /dev/disk/by-id, including those that udev would create from the
	// kernel's attributes.
	IDs []string
	// Model and Serial may be empty.
	Model, Serial string
	// Size is in bytes.
	Size int64
	// Sequence is unique among all devices since boot; zero if the kernel does not number them.
	Sequence uint64
	Features
	Parent string
	// Partitions and Holders name the devices directly above.
	Partitions, Holders []string
	Mapping             Mapping
	Number              Number
	// UserData says why the contents are, or may be, those of a volume's user, so that nothing
	// searches them for LVM's metadata. List leaves it empty, see lvm.Devices.
	UserData string
}

// Features describe the kind of device.
type Features struct {
	Rotational, ReadOnly bool
	// LogicalBlockSize is in bytes; zero if the kernel does not say.
	LogicalBlockSize int64
	// DAX means that the kernel can map the contents directly into memory.
	DAX bool
	// Virtual is true for devices made by the machine's own software: loops, RAM disks,
	// device-mapper and md devices and the like.
	Virtual bool
}

// Mapping describes a device-mapper device. It is zero for others.
type Mapping struct {
	Name          string
	LogicalVolume bool
}

// NVMe reports whether the device is a namespace of an NVMe controller, or a partition of one.
func (d *Device) NVMe() bool { return strings.HasPrefix(d.Name, "nvme") }

// Paths returns the nodes that the device always has.
func (d *Device) Paths() []string {
	if d.Mapping.Name == "" {
		return []string{d.Path}
	}
	return []string{d.Path, "/dev/mapper/" + d.Mapping.Name}
}

// List reads sysfs and udev's links below root, which is "/" except in tests. It omits devices
// without a size and those that the kernel hides. It opens no device and runs nothing.
func List(root string) ([]Device, error) {
	base := filepath.Join(root, "sys/block")
	disks, err := os.ReadDir(base)
	if err != nil {
		return nil, fmt.Errorf("block devices: %w", err)
	}
	links := deviceLinks(filepath.Join(root, "dev/disk/by-id"))
	var all []Device
	for _, entry := range disks {
		dir := filepath.Join(base, entry.Name())
		disk, err := readDevice(dir, entry.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone in this moment
		}
		if err != nil {
			return nil, err
		}
		disk.describe(dir)
		var partitions []Device
		for _, name := range disk.Partitions {
			p, err := readDevice(filepath.Join(dir, name), name)
			if err != nil {
				continue // gone in this moment
			}
			p.Parent, p.Model, p.Serial, p.Virtual = disk.Name, disk.Model, disk.Serial, disk.Virtual
			p.Rotational, p.DAX, p.LogicalBlockSize = disk.Rotational, disk.DAX, disk.LogicalBlockSize
			p.IDs = links[name]
			partitions = append(partitions, p)
		}
		disk.IDs = slices.Concat(links[disk.Name], disk.synthesized(dir))
		slices.Sort(disk.IDs)
		disk.IDs = slices.Compact(disk.IDs)
		if disk.Size > 0 && attribute(dir, "hidden") != "1" {
			all = append(append(all, disk), partitions...)
		}
	}
	return all, nil
}

func readDevice(dir, name string) (Device, error) {
	d := Device{Name: name, Path: "/dev/" + strings.ReplaceAll(name, "!", "/")}
	size, err := os.ReadFile(filepath.Join(dir, "size"))
	if err != nil {
		return d, fmt.Errorf("block device %s: %w", name, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(size)), 10, 64)
	if err != nil || sectors > 1<<53 {
		return d, fmt.Errorf("block device %s: size %q", name, size)
	}
	d.Size = sectors * SectorSize // the kernel's unit for every device
	d.Number, _ = ParseNumber(attribute(dir, "dev"))
	d.ReadOnly = attribute(dir, "ro") == "1"
	d.Sequence, _ = strconv.ParseUint(attribute(dir, "diskseq"), 10, 64)
	holders, _ := os.ReadDir(filepath.Join(dir, "holders"))
	for _, h := range holders {
		d.Holders = append(d.Holders, h.Name())
	}
	if isMapped(name) {
		return d, nil // the kernel makes no partitions of it
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		// Only entries with the prefix can be partitions, and devices have many others.
		if strings.HasPrefix(e.Name(), name) && attribute(filepath.Join(dir, e.Name()), "partition") != "" {
			d.Partitions = append(d.Partitions, e.Name())
		}
	}
	return d, nil
}

// isMapped reports whether a device is device-mapper's. A node may have thousands, so callers
// skip attributes that these lack.
func isMapped(name string) bool { return strings.HasPrefix(name, "dm-") }

func (d *Device) describe(dir string) {
	d.Rotational = attribute(dir, "queue/rotational") == "1"
	d.DAX = attribute(dir, "queue/dax") == "1"
	d.LogicalBlockSize, _ = strconv.ParseInt(attribute(dir, "queue/logical_block_size"), 10, 64)
	if isMapped(d.Name) {
		d.Mapping, d.Virtual = readMapping(dir), true
		return
	}
	d.Model = attribute(dir, "device/model")
	for _, file := range []string{"device/serial", "serial"} {
		if d.Serial == "" {
			d.Serial = attribute(dir, file)
		}
	}
	for _, prefix := range []string{"loop", "ram", "zram", "md", "nbd", "sr", "fd", "rbd", "drbd", "bcache", "zd", "ublkb"} {
		rest, ok := strings.CutPrefix(d.Name, prefix)
		// mdXYZ and sram0, for example, are other devices.
		d.Virtual = d.Virtual || ok && (rest == "" || rest[0] >= '0' && rest[0] <= '9' || rest[0] == '_')
	}
}

// synthesized returns the names that udev's rules derive from the kernel's attributes, for
// machines without udev.
func (d *Device) synthesized(dir string) []string {
	// Like udev, replace the blanks.
	clean := func(s string) string { return strings.Join(strings.Fields(s), "_") }
	if isMapped(d.Name) {
		return nil
	}
	var ids []string
	wwid := attribute(dir, "wwid")
	if wwid == "" {
		wwid = attribute(dir, "device/wwid")
	}
	switch {
	case d.NVMe():
		if d.Model != "" && d.Serial != "" {
			ids = append(ids, "nvme-"+clean(d.Model)+"_"+clean(d.Serial))
		}
		if wwid != "" {
			ids = append(ids, "nvme-"+clean(wwid))
		}
	case strings.HasPrefix(d.Name, "vd") && d.Serial != "":
		ids = append(ids, "virtio-"+clean(d.Serial))
	}
	if naa, ok := strings.CutPrefix(wwid, "naa."); ok {
		ids = append(ids, "wwn-0x"+naa)
	}
	return ids
}

// deviceLinks maps base names of targets to links.
func deviceLinks(dir string) map[string][]string {
	links := map[string][]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			links[filepath.Base(target)] = append(links[filepath.Base(target)], e.Name())
		}
	}
	return links
}

// logicalVolumeUUID begins LVM's device-mapper UUIDs.
const logicalVolumeUUID = "LVM-"

// maxAttribute is the size of a page, which no sysfs file exceeds.
const maxAttribute = 4096

// attribute returns the contents of a sysfs file, or "". os.ReadFile makes twice as many system
// calls, which take most of the time to list thousands of devices.
func attribute(dir, file string) string {
	fd, err := unix.Open(filepath.Join(dir, file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	var page [maxAttribute]byte
	n, err := unix.Read(fd, page[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(page[:n]))
}
