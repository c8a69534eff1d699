package lvmfake

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// MakeInconsistent leaves a volume's or component's device as a command killed in mid-change
// does: until repaired, the volume is too long and fails all I/O.
func (f administrator) MakeInconsistent(groupName, device string) {
	defer f.lock()()
	g := f.groups[groupName]
	g.inconsistent = append(g.inconsistent, device)
}

// Renumber removes a volume's device, as lvchange does, and with active creates it again with
// another number. It writes nothing to the disks.
func (f administrator) Renumber(groupName, name string, active bool) {
	defer f.lock()()
	v := f.groups[groupName].volumes[name]
	v.minor = 0
	if active {
		f.minor++
		v.minor = f.minor
	}
}

// AddGroup creates a volume group of one device.
func (f administrator) AddGroup(name string, extentSize, extents int64) {
	defer f.lock()()
	g := &group{
		uuid: fmt.Sprintf("fake-%s", name), device: "fake-pv-" + name, seqno: 1, extentSize: extentSize, extents: extents,
		metadataLimit: 521472, dataOffset: 1 << 20,
		free: make([]bool, extents), volumes: map[string]*volume{}, dirty: store{}, noise: store{},
	}
	for i := range g.free {
		g.free[i] = true
	}
	f.groups[name] = g
}

func (f administrator) RemoveGroup(name string) {
	defer f.lock()()
	delete(f.groups, name)
}

// PlugGroup removes all devices of a group from AddGroup, so that Scan does not find it, or
// brings them back with their contents.
func (f administrator) PlugGroup(name string, plugged bool) {
	defer f.lock()()
	from, to := f.groups, f.away
	if plugged {
		from, to = to, from
	}
	to[name] = from[name]
	delete(from, name)
}

func (f administrator) SetGroupUUID(name, uuid string) {
	defer f.lock()()
	f.groups[name].uuid = uuid
}

// ReplaceDevice replaces a physical volume of a group, like vgextend, pvmove and vgreduce.
func (f administrator) ReplaceDevice(groupName, from, to string) {
	defer f.lock()()
	g := f.groups[groupName]
	g.seqno++
	if g.device == from {
		g.device = to
	}
	for _, d := range g.disks {
		if d.contents.Label.UUID == from {
			d.contents.Label.UUID = to
		}
	}
}

// SetCopied puts a copy of a group's first device on another one, or none if path is empty.
func (f administrator) SetCopied(name, path string) {
	defer f.lock()()
	f.groups[name].copied = path
}

// SetSeqno makes a group's metadata older or newer.
func (f administrator) SetSeqno(name string, seqno uint64) {
	defer f.lock()()
	f.groups[name].seqno = seqno
}

func (f administrator) SetDAX(name string, dax bool) {
	defer f.lock()()
	f.groups[name].dax = dax
}

// SetExtentSize works like vgchange --physicalextentsize, for a group from AddGroupOf without
// volumes.
func (f administrator) SetExtentSize(name string, bytes int64) {
	defer f.lock()()
	g := f.groups[name]
	g.seqno++
	g.extentSize, g.extents, g.free = bytes, 0, nil
	for _, d := range g.disks {
		d.members = nil
		g.grow(d)
	}
}

func (f administrator) SetDataOffset(name string, bytes int64) {
	defer f.lock()()
	f.groups[name].dataOffset = bytes
}

// SetMetadataLimit changes the initial limit, which is LVM's default.
func (f administrator) SetMetadataLimit(name string, limit int64) {
	defer f.lock()()
	f.groups[name].metadataLimit = limit
}

func (f administrator) SetMissing(name string, missing bool) {
	defer f.lock()()
	f.groups[name].missing = missing
}

// SetForeign makes LVM hide a group for a reason, or show it again if why is empty.
func (f administrator) SetForeign(name, why string) {
	defer f.lock()()
	f.groups[name].foreign = why
	f.groups[name].seqno++
}

func (f administrator) Commands(op Op) int {
	defer f.lock()()
	return f.ops[op]
}

// Deactivate removes all devices, like a reboot.
func (f administrator) Deactivate() {
	defer f.lock()()
	for _, g := range f.groups {
		for _, v := range g.volumes {
			v.minor, v.mounts, v.handle, v.cipher = 0, 0, nil, nil
		}
	}
}

// SetMostVolumes works like vgchange --logicalvolume; zero means no limit.
func (f administrator) SetMostVolumes(name string, most int64) {
	defer f.lock()()
	f.groups[name].mostVolumes = most
	f.groups[name].seqno++
}

// SetPool sets the kernel's status of a pool, except for data counts, which follow from the
// volumes.
func (f administrator) SetPool(groupName, name string, s lvm.PoolStatus) {
	defer f.lock()()
	p := f.groups[groupName].volumes[name].pool
	p.metadataUsed, p.failed, p.readOnly = s.MetadataUsed, s.Failed, s.ReadOnly
	p.needsCheck, p.queues = s.NeedsCheck, s.QueuesWhenFull
}

func (f administrator) SetPoolZeroing(groupName, name string, zero bool) {
	defer f.lock()()
	g := f.groups[groupName]
	g.volumes[name].pool.keepsOld = !zero
	g.seqno++
}

// RemovePool removes a thin pool with all its volumes.
func (f administrator) RemovePool(groupName, name string) {
	defer f.lock()()
	g := f.groups[groupName]
	p := g.volumes[name]
	for other, v := range g.volumes {
		if v.thin != nil && v.thin.pool == p {
			delete(g.volumes, other)
		}
	}
	g.give(slices.Concat(p.all(), p.pool.metadata, p.pool.metadataShape.extra(), p.pool.spare))
	delete(g.volumes, name)
	g.seqno++
}

// AddGroupOf creates a volume group of devices with these numbers of extents.
func (f administrator) AddGroupOf(name string, extentSize int64, devices ...int64) {
	f.AddGroup(name, extentSize, 0)
	defer f.lock()()
	g := f.groups[name]
	for _, extents := range devices {
		g.add(name, extents)
	}
}

// AddDevice works like vgextend, on a group from AddGroupOf.
func (f administrator) AddDevice(groupName string, extents int64) {
	defer f.lock()()
	g := f.groups[groupName]
	g.add(groupName, extents)
	g.seqno++
}

func (g *group) add(name string, extents int64) {
	i := len(g.disks)
	d := &disk{dataOffset: g.dataOffset}
	d.Path = fmt.Sprintf("/dev/fake-%s-%d", name, i)
	d.Size = d.dataOffset + extents*g.extentSize
	d.contents.Label = &ondisk.Label{UUID: fmt.Sprintf("fake-pv-%s-%d", name, i), Group: name}
	g.disks = append(g.disks, d)
	g.grow(d)
}

// TakeDevice removes a group's last device, which must be unused, like vgreduce.
func (f administrator) TakeDevice(groupName string) {
	defer f.lock()()
	g := f.groups[groupName]
	last := len(g.disks) - 1
	g.extents -= int64(len(g.disks[last].members))
	g.free, g.disks = g.free[:g.extents], g.disks[:last]
	g.seqno++
}

// SetRAIDStatus sets the kernel's status of a RAID volume, except for Total, which follows from
// its size.
func (f administrator) SetRAIDStatus(groupName, name string, s lvm.RAIDStatus) {
	defer f.lock()()
	f.groups[groupName].volumes[name].shape.status = s
}

// Move moves a linear volume and its contents to other extents, like pvmove(8). It fails if too
// few are free.
func (f administrator) Move(groupName, name string) error {
	defer f.lock()()
	g, err := f.writable("pvmove", groupName)
	if err != nil {
		return err
	}
	v := g.volumes[name]
	if v == nil || v.shape != nil || v.pool != nil || v.thin != nil {
		return fmt.Errorf("pvmove: %s/%s: %w, or not linear", groupName, name, lvm.ErrNotFound)
	}
	var to []int64
	for e := range g.extents {
		if g.free[e] && len(to) < len(v.extents) {
			to = append(to, e)
		}
	}
	if len(to) < len(v.extents) {
		return errors.New("pvmove: too few extents are free")
	}
	blocks := g.extentSize / blockSize
	for i, from := range v.extents {
		for b := range blocks {
			g.dirty.put(to[i]*blocks+b, 1, g.dirty.get(from*blocks+b))
		}
		g.free[to[i]] = false
	}
	g.give(v.extents)
	v.extents = to
	g.seqno++
	return nil
}
