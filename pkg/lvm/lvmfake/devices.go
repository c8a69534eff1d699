package lvmfake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
)

// The commands that make and grow groups.
const (
	OpInitDevice   Op = "pvcreate"
	OpCreateGroup  Op = "vgcreate"
	OpExtendGroup  Op = "vgextend"
	OpResizeDevice Op = "pvresize"
)

var _ lvm.Devices = (*Groups)(nil)

// disk is a block device of the fake machine.
type disk struct {
	lvm.BlockDevice
	contents lvm.Contents
	claimed  bool
	// unplugged disks keep what they hold, unseen.
	unplugged bool
	// dataOffset is where extents begin once it is a physical volume.
	dataOffset int64
	// members are the numbers of its extents in its group, in order.
	members []int64
}

// AddDisk adds a block device, which holds what the signatures say.
func (f *Groups) AddDisk(d lvm.BlockDevice, signatures ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.Path = "/dev/" + d.Name
	f.disks = append(f.disks, &disk{BlockDevice: d, contents: lvm.Contents{
		Signatures: signatures, Partitioned: slices.Contains(signatures, "gpt"),
	}})
}

// ChangeDisk lets change alter what the kernel says of a device.
func (f *Groups) ChangeDisk(name string, change func(*lvm.BlockDevice)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.disk("/dev/" + name).BlockDevice)
}

// MarkDisk puts a signature on a device that is in no group.
func (f *Groups) MarkDisk(name, signature string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disk("/dev/" + name).contents = lvm.Contents{Signatures: []string{signature}, Partitioned: signature == "gpt"}
}

// WipeDisk removes everything from a device that is in no group.
func (f *Groups) WipeDisk(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disk("/dev/" + name).contents = lvm.Contents{}
}

// ClaimDisk makes somebody use a device exclusively, or stop that.
func (f *Groups) ClaimDisk(name string, claimed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disk("/dev/" + name).claimed = claimed
}

// PlugDisk takes a device away, or brings it back with all it holds. A group
// of which no device is left is not found.
func (f *Groups) PlugDisk(name string, plugged bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
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

// disk finds a device by its path, or nil. The caller holds f.mu.
func (f *Groups) disk(path string) *disk {
	for _, d := range f.disks {
		if d.Path == path {
			return d
		}
	}
	return nil
}

// plugged finds a device that can be seen. The caller holds f.mu.
func (f *Groups) plugged(path string) (*disk, error) {
	if d := f.disk(path); d != nil && !d.unplugged {
		return d, nil
	}
	return nil, fmt.Errorf("%s: %w", path, lvm.ErrNotFound)
}

// BlockDevices implements lvm.Devices.
func (f *Groups) BlockDevices() ([]lvm.BlockDevice, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []lvm.BlockDevice
	for _, d := range f.disks {
		if !d.unplugged && f.accepted(&d.BlockDevice) {
			all = append(all, d.BlockDevice)
		}
	}
	return all, nil
}

// Label implements lvm.Devices.
func (f *Groups) Label(device string) (lvm.Label, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.plugged(device)
	switch {
	case err != nil:
		return lvm.Label{}, err
	case d.contents.Label == nil:
		return lvm.Label{}, fmt.Errorf("%s: %w: not a physical volume", device, lvm.ErrNotFound)
	}
	l := *d.contents.Label
	l.Size = d.Size
	return l, nil
}

// Examine implements lvm.Devices.
func (f *Groups) Examine(_ context.Context, device string) (lvm.Contents, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
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

// InitDevice implements lvm.Devices.
func (f *Groups) InitDevice(ctx context.Context, o lvm.InitOptions) error {
	if err := f.begin(ctx, OpInitDevice, ""); err != nil {
		return err
	}
	if err := f.initDevice(o); err != nil {
		return err
	}
	return f.end(OpInitDevice, "")
}

func (f *Groups) initDevice(o lvm.InitOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
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
		Label:      &lvm.Label{UUID: o.UUID, Orphan: true, KnownSize: d.Size},
	}
	return nil
}

// CreateGroup implements lvm.Devices.
func (f *Groups) CreateGroup(ctx context.Context, o lvm.GroupOptions) error {
	if err := f.begin(ctx, OpCreateGroup, o.Group); err != nil {
		return err
	}
	if err := f.createGroup(o); err != nil {
		return err
	}
	return f.end(OpCreateGroup, o.Group)
}

func (f *Groups) createGroup(o lvm.GroupOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.groups[o.Group] != nil {
		return failure("vgcreate", lvm.ErrExists, "volume group %q", o.Group)
	}
	f.minor++
	g := &group{
		uuid: fmt.Sprintf("fake-%s-%d", o.Group, f.minor), seqno: 1, extentSize: o.ExtentSize,
		metadataLimit: 64 << 20, volumes: map[string]*volume{}, dirty: map[int64]byte{},
	}
	if err := f.join(g, "vgcreate", o.Group, o.Devices); err != nil {
		return err
	}
	f.groups[o.Group] = g
	return nil
}

// ExtendGroup implements lvm.Devices.
func (f *Groups) ExtendGroup(ctx context.Context, groupName string, devices []string) error {
	if err := f.begin(ctx, OpExtendGroup, groupName); err != nil {
		return err
	}
	if err := f.extendGroup(groupName, devices); err != nil {
		return err
	}
	return f.end(OpExtendGroup, groupName)
}

func (f *Groups) extendGroup(groupName string, devices []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("vgextend", groupName)
	if err != nil {
		return err
	}
	if err := f.join(g, "vgextend", groupName, devices); err != nil {
		return err
	}
	g.seqno++
	return nil
}

// join adds devices to a group, all or none. The caller holds f.mu.
func (f *Groups) join(g *group, command, groupName string, devices []string) error {
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

// grow gives a group the extents of a device that it has not yet.
func (g *group) grow(d *disk) {
	d.contents.Label.KnownSize = d.Size
	more := (d.Size-d.dataOffset)/g.extentSize - int64(len(d.members))
	for range more {
		d.members = append(d.members, g.extents)
		g.free = append(g.free, true)
		g.extents++
	}
}

// ResizeDevice implements lvm.Devices.
func (f *Groups) ResizeDevice(ctx context.Context, groupName, device string) error {
	if err := f.begin(ctx, OpResizeDevice, groupName); err != nil {
		return err
	}
	if err := f.resizeDevice(groupName, device); err != nil {
		return err
	}
	return f.end(OpResizeDevice, groupName)
}

func (f *Groups) resizeDevice(groupName, device string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("pvresize", groupName)
	if err != nil {
		return err
	}
	d, err := f.plugged(device)
	if err != nil || !slices.Contains(g.disks, d) {
		return failure("pvresize", lvm.ErrNotFound, "%s is not in volume group %q", device, groupName)
	}
	g.grow(d)
	g.seqno++
	return nil
}

// AttachFile implements lvm.Devices: the file is a disk named after it.
func (f *Groups) AttachFile(path string, size int64) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := "loop-" + strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-")
	d := f.disk("/dev/" + name)
	if d == nil {
		d = &disk{BlockDevice: lvm.BlockDevice{Name: name, Path: "/dev/" + name, Virtual: true}}
		f.disks = append(f.disks, d)
	}
	d.Size = max(d.Size, size)
	return d.Path, nil
}

// reportDisks lists the devices of a group that was made of disks.
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
