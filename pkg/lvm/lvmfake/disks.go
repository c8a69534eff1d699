package lvmfake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// The commands that create and grow groups.
const (
	OpInitDevice   Op = "pvcreate"
	OpCreateGroup  Op = "vgcreate"
	OpExtendGroup  Op = "vgextend"
	OpResizeDevice Op = "pvresize"
)

type disk struct {
	blockdev.Device
	contents lvm.Contents
	claimed  bool
	// imitates names the group whose UUID a disk with a user's contents shows.
	imitates string
	// unplugged disks keep their contents.
	unplugged bool
	// dataOffset is in bytes.
	dataOffset int64
	// members are the group's extents on this disk, in order.
	members []int64
}

// AddDisk adds a block device with the given signatures.
func (f hands) AddDisk(d blockdev.Device, signatures ...string) {
	defer f.lock()()
	d.Path = "/dev/" + d.Name
	f.disks = append(f.disks, &disk{Device: d, contents: lvm.Contents{
		Signatures: signatures, Partitioned: slices.Contains(signatures, "gpt"),
	}})
}

func (f hands) ChangeDisk(name string, change func(*blockdev.Device)) {
	defer f.lock()()
	change(&f.disk("/dev/" + name).Device)
}

// SwapDisks swaps the names of two devices, as a reboot may, and their positions in
// BlockDevices.
func (f hands) SwapDisks(name, other string) {
	defer f.lock()()
	i, j := slices.Index(f.disks, f.disk("/dev/"+name)), slices.Index(f.disks, f.disk("/dev/"+other))
	f.disks[i], f.disks[j] = f.disks[j], f.disks[i]
	a, b := f.disks[i], f.disks[j]
	a.Name, b.Name = b.Name, a.Name
	a.Path, b.Path = b.Path, a.Path
}

func (f hands) MarkDisk(name, signature string) {
	defer f.lock()()
	f.disk("/dev/" + name).contents = lvm.Contents{Signatures: []string{signature}, Partitioned: signature == "gpt"}
}

// ImitateGroup makes a device with a user's contents show the UUID of a group, or of none if
// group is empty.
func (f hands) ImitateGroup(name, group string) {
	defer f.lock()()
	f.disk("/dev/" + name).imitates = group
}

func (f hands) WipeDisk(name string) {
	defer f.lock()()
	f.disk("/dev/" + name).contents = lvm.Contents{}
}

func (f hands) ClaimDisk(name string, claimed bool) {
	defer f.lock()()
	f.disk("/dev/" + name).claimed = claimed
}

// PlugDisk removes a device, or brings it back with its contents. Scan does not find a group
// without devices.
func (f hands) PlugDisk(name string, plugged bool) {
	defer f.lock()()
	d := f.disk("/dev/" + name)
	d.unplugged = !plugged
	if d.contents.Label == nil || d.contents.Label.Group == "" {
		return
	}
	groupName := d.contents.Label.Group
	present, missing := 0, false
	for _, other := range f.disks {
		if other.contents.Label != nil && other.contents.Label.Group == groupName {
			missing = missing || other.unplugged
			if !other.unplugged {
				present++
			}
		}
	}
	g := f.groups[groupName]
	if g == nil {
		g = f.away[groupName]
	}
	g.missing = missing
	if present == 0 {
		f.away[groupName] = g
		delete(f.groups, groupName)
	} else {
		f.groups[groupName] = g
		delete(f.away, groupName)
	}
}

// The caller holds the machine's lock.
func (f *machine) disk(path string) *disk {
	for _, d := range f.disks {
		if d.Path == path {
			return d
		}
	}
	return nil
}

// The caller holds the machine's lock.
func (f *machine) plugged(path string) (*disk, error) {
	if d := f.disk(path); d != nil && !d.unplugged {
		return d, nil
	}
	return nil, fmt.Errorf("%s: %w", path, lvm.ErrNotFound)
}

func (f provisioning) Examine(_ context.Context, device string) (lvm.Contents, error) {
	defer f.lock()()
	d, err := f.plugged(device)
	if err != nil {
		return lvm.Contents{}, err
	}
	f.ops["examine"]++
	if d.claimed {
		return lvm.Contents{}, fmt.Errorf("%s: %w", device, lvm.ErrClaimed)
	}
	c := d.contents
	c.Signatures = slices.Clone(c.Signatures)
	if c.Label != nil {
		label := *c.Label
		c.Label = &label
	}
	return c, nil
}

func (f provisioning) InitDevice(ctx context.Context, o lvm.InitOptions) error {
	if err := f.begin(ctx, OpInitDevice, ""); err != nil {
		return err
	}
	if err := f.initDevice(o); err != nil {
		return err
	}
	return f.end(OpInitDevice, "")
}

func (f provisioning) initDevice(o lvm.InitOptions) error {
	defer f.lock()()
	d, err := f.plugged(o.Device)
	switch {
	case err != nil:
		return err
	case d.claimed:
		return failure("pvcreate", lvm.ErrBusy, "%s is in use", o.Device)
	case d.contents.Partitioned, d.contents.Label != nil && d.contents.Label.Group != "":
		return failure("pvcreate", nil, "%s is partitioned or belongs to a group", o.Device)
	case !d.contents.Empty() && !o.Overwrite:
		return failure("pvcreate", nil, "%s holds %s", o.Device, &d.contents)
	}
	d.dataOffset = o.MetadataSize + o.DataAlignment - o.MetadataSize%o.DataAlignment
	d.contents = lvm.Contents{
		Signatures: []string{"LVM2_member"},
		Label:      &ondisk.Label{UUID: o.UUID, Orphan: true, KnownSize: d.Size},
	}
	return nil
}

func (f provisioning) CreateGroup(ctx context.Context, o lvm.GroupOptions) error {
	if err := f.begin(ctx, OpCreateGroup, o.Group); err != nil {
		return err
	}
	if err := f.createGroup(o); err != nil {
		return err
	}
	return f.end(OpCreateGroup, o.Group)
}

func (f provisioning) createGroup(o lvm.GroupOptions) error {
	defer f.lock()()
	if f.groups[o.Group] != nil {
		return failure("vgcreate", lvm.ErrExists, "volume group %q", o.Group)
	}
	f.minor++
	g := &group{
		uuid: fmt.Sprintf("fake-%s-%d", o.Group, f.minor), seqno: 1, extentSize: o.ExtentSize,
		metadataLimit: 64 << 20, volumes: map[string]*volume{}, dirty: store{}, noise: store{},
	}
	if err := f.join(g, "vgcreate", o.Group, o.Devices); err != nil {
		return err
	}
	f.groups[o.Group] = g
	return nil
}

func (f provisioning) ExtendGroup(ctx context.Context, groupName string, devices []string) error {
	return f.command(ctx, OpExtendGroup, groupName, "vgextend", func(g *group) error {
		if err := f.join(g, "vgextend", groupName, devices); err != nil {
			return err
		}
		g.seqno++
		return nil
	})
}

// join is all or nothing. The caller holds the machine's lock.
func (f provisioning) join(g *group, command, groupName string, devices []string) error {
	var joining []*disk
	for _, path := range devices {
		d, err := f.plugged(path)
		if err != nil {
			return err
		}
		if d.contents.Label == nil || !d.contents.Label.Orphan {
			return failure(command, nil, "%s is no physical volume without a group", path)
		}
		joining = append(joining, d)
	}
	for _, d := range joining {
		d.contents.Label.Group, d.contents.Label.Orphan = groupName, false
		g.dataOffset, g.dax = d.dataOffset, d.DAX
		g.disks = append(g.disks, d)
		g.grow(d)
	}
	return nil
}

func (g *group) grow(d *disk) {
	d.contents.Label.KnownSize = d.Size
	more := (d.Size-d.dataOffset)/g.extentSize - int64(len(d.members))
	for range more {
		d.members = append(d.members, g.extents)
		g.free = append(g.free, true)
		g.extents++
	}
}

func (f provisioning) ResizeDevice(ctx context.Context, groupName, device string) error {
	return f.command(ctx, OpResizeDevice, groupName, "pvresize", func(g *group) error {
		d, err := f.plugged(device)
		if err != nil || !slices.Contains(g.disks, d) {
			return failure("pvresize", lvm.ErrNotFound, "%s is not in volume group %q", device, groupName)
		}
		g.grow(d)
		g.seqno++
		return nil
	})
}

// AttachFile names the new disk after the file.
func (f provisioning) AttachFile(path string, size int64) (string, error) {
	defer f.lock()()
	name := "loop-" + strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-")
	d := f.disk("/dev/" + name)
	if d == nil {
		d = &disk{Device: blockdev.Device{Name: name, Path: "/dev/" + name, Features: blockdev.Features{Virtual: true}}}
		f.disks = append(f.disks, d)
	}
	d.Size = max(d.Size, size)
	return d.Path, nil
}

func (g *group) reportDisks(r *lvm.Group) {
	r.MissingDevices = 0
	for _, d := range g.disks {
		pv := lvm.PhysicalVolume{
			Path: d.Path, UUID: d.contents.Label.UUID, Missing: d.unplugged, Allocatable: true,
			DAX: d.DAX, Extents: int64(len(d.members)), DataOffset: d.dataOffset,
		}
		if d.unplugged {
			r.MissingDevices++
		}
		for _, e := range d.members {
			if !g.free[e] {
				pv.AllocatedExtents++
			}
		}
		r.Devices = append(r.Devices, pv)
	}
}
