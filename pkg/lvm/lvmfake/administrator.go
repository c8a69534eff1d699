package lvmfake

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// MakeInconsistent makes a device, of a volume or of a component of one, what a command leaves that
// is killed while it changes it: until it is repaired, the volume is longer than it
// should be, and all of its I/O fails.
func (f administrator) MakeInconsistent(groupName, device string) {
	defer f.lock()()
	g := f.groups[groupName]
	g.inconsistent = append(g.inconsistent, device)
}

// Renumber takes the device of a volume away, as an administrator does by lvchange,
// or makes it, with another number than it had. Nothing is written to the disks.
func (f administrator) Renumber(groupName, name string, active bool) {
	defer f.lock()()
	v := f.groups[groupName].volumes[name]
	v.minor = 0
	if active {
		f.minor++
		v.minor = f.minor
	}
}

// AddGroup makes a volume group of one device. Like every change, it may
// happen while others use the fake.
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

// RemoveGroup makes a volume group vanish with all it holds.
func (f administrator) RemoveGroup(name string) {
	defer f.lock()()
	delete(f.groups, name)
}

// PlugGroup takes all devices of a volume group that AddGroup made away, so that
// the group is not found, or brings them back with all they hold.
func (f administrator) PlugGroup(name string, plugged bool) {
	defer f.lock()()
	from, to := f.groups, f.away
	if plugged {
		from, to = to, from
	}
	to[name] = from[name]
	delete(from, name)
}

// SetGroupUUID gives a volume group another UUID: it is another group of the same name.
func (f administrator) SetGroupUUID(name, uuid string) {
	defer f.lock()()
	f.groups[name].uuid = uuid
}

// ReplaceDevice has a group lie on another physical volume instead of one, as an administrator does
// with vgextend, pvmove and vgreduce.
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

// SetCopied has another device hold the same as the first one of a group; none if path is empty.
func (f administrator) SetCopied(name, path string) {
	defer f.lock()()
	f.groups[name].copied = path
}

// SetSeqno has a group's metadata be that of before, or of later.
func (f administrator) SetSeqno(name string, seqno uint64) {
	defer f.lock()()
	f.groups[name].seqno = seqno
}

// SetDAX makes a group's device one that can be mapped directly into memory.
func (f administrator) SetDAX(name string, dax bool) {
	defer f.lock()()
	f.groups[name].dax = dax
}

// SetExtentSize changes the extents of a group that AddGroupOf made and that has no volumes, as
// vgchange --physicalextentsize does.
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

// SetDataOffset changes where the first extent of a group's device begins.
func (f administrator) SetDataOffset(name string, bytes int64) {
	defer f.lock()()
	f.groups[name].dataOffset = bytes
}

// SetMetadataLimit changes how large a group's metadata may become; at first
// it is what LVM makes by default.
func (f administrator) SetMetadataLimit(name string, limit int64) {
	defer f.lock()()
	f.groups[name].metadataLimit = limit
}

// SetMissing makes a group's device vanish or come back.
func (f administrator) SetMissing(name string, missing bool) {
	defer f.lock()()
	f.groups[name].missing = missing
}

// SetForeign has LVM hide a group for a reason, or show it again if that is empty. As every change, it raises the
// sequence number.
func (f administrator) SetForeign(name, why string) {
	defer f.lock()()
	f.groups[name].foreign = why
	f.groups[name].seqno++
}

// Commands counts the commands run so far.
func (f administrator) Commands(op Op) int {
	defer f.lock()()
	return f.ops[op]
}

// Deactivate makes all devices vanish, as a reboot does.
func (f administrator) Deactivate() {
	defer f.lock()()
	for _, g := range f.groups {
		for _, v := range g.volumes {
			v.minor, v.mounts, v.handle, v.cipher = 0, 0, nil, nil
		}
	}
}

// SetMostVolumes limits how many volumes a group may have, as vgchange --logicalvolume
// does; zero is no limit.
func (f administrator) SetMostVolumes(name string, most int64) {
	defer f.lock()()
	f.groups[name].mostVolumes = most
	f.groups[name].seqno++
}

// SetPool changes what the kernel says of a pool: tests break it with this.
// Data counts cannot be changed; what volumes hold makes them.
func (f administrator) SetPool(groupName, name string, s lvm.PoolStatus) {
	defer f.lock()()
	p := f.groups[groupName].volumes[name].pool
	p.metadataUsed, p.failed, p.readOnly = s.MetadataUsed, s.Failed, s.ReadOnly
	p.needsCheck, p.queues = s.NeedsCheck, s.QueuesWhenFull
}

// SetPoolZeroing makes a pool zero new blocks, or not.
func (f administrator) SetPoolZeroing(groupName, name string, zero bool) {
	defer f.lock()()
	g := f.groups[groupName]
	g.volumes[name].pool.keepsOld = !zero
	g.seqno++
}

// RemovePool removes a thin pool with all its volumes, as an administrator may.
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

// AddGroupOf makes a volume group of several devices of so many extents each.
func (f administrator) AddGroupOf(name string, extentSize int64, devices ...int64) {
	f.AddGroup(name, extentSize, 0)
	defer f.lock()()
	g := f.groups[name]
	for _, extents := range devices {
		g.add(name, extents)
	}
}

// AddDevice adds a device to a group that AddGroupOf made, as an administrator does with vgextend.
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

// TakeDevice takes the last device, on which nothing lies, out of a group of several, as an administrator does
// with vgreduce.
func (f administrator) TakeDevice(groupName string) {
	defer f.lock()()
	g := f.groups[groupName]
	last := len(g.disks) - 1
	g.extents -= int64(len(g.disks[last].members))
	g.free, g.disks = g.free[:g.extents], g.disks[:last]
	g.seqno++
}

// SetRAIDStatus changes what the kernel says of a RAID volume, but for how
// much of it there is: tests break it with this.
func (f administrator) SetRAIDStatus(groupName, name string, s lvm.RAIDStatus) {
	defer f.lock()()
	f.groups[groupName].volumes[name].shape.status = s
}

// Move moves a linear volume to other extents with what it holds, as an administrator does
// with pvmove(8). It fails where too few extents are free.
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
