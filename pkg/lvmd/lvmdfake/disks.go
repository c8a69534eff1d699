package lvmdfake

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// AllocationUnit is the extent size of every class, in bytes.
const AllocationUnit = 4 << 20

// Class is a device class.
type Class struct {
	Name    string
	Default bool
	// Group is the volume group; empty means one of its own.
	Group string
	// Bytes is the size of the volume group, the same in all its classes.
	Bytes int64
	// Mirrored classes keep two copies, each with a unit of metadata, as raid1 does.
	Mirrored bool
	// Thin classes have snapshots, which count with their volume's size.
	Thin       bool
	Conditions []*lvmdv1.Condition
	// Groups are reported in addition to Group.
	Groups []*lvmdv1.ClassGroup
}

func (c *Class) group() string { return cmp.Or(c.Group, c.Name) }

// costs returns the bytes of the group per unit of a volume, and per volume.
func (c *Class) costs() (unit, volume int64) {
	if c.Mirrored {
		return 2 * AllocationUnit, 2 * AllocationUnit
	}
	return AllocationUnit, 0
}

// disks are the state that survives lvmd's process runs. The server's lock guards it.
type disks struct {
	id        string // prefix of the groups' UUIDs
	classes   map[string]*Class
	volumes   map[string]*lvmdv1.Volume   // by id
	snapshots map[string]*lvmdv1.Snapshot // by id
	devices   uint32                      // counts the devices ever made
}

func newDisks(classes []Class) disks {
	return disks{id: newID(), classes: byName(classes), volumes: map[string]*lvmdv1.Volume{}, snapshots: map[string]*lvmdv1.Snapshot{}}
}

func byName(classes []Class) map[string]*Class {
	out := map[string]*Class{}
	for _, c := range classes {
		out[c.Name] = &c
	}
	return out
}

// class finds the default by the empty name.
func (d *disks) class(name string) (*Class, error) {
	for _, c := range d.classes {
		if c.Name == name || name == "" && c.Default {
			return c, nil
		}
	}
	return nil, apierror.ClassNotFound("no device class %q; this node offers %s", name, strings.Join(slices.Sorted(maps.Keys(d.classes)), ", "))
}

// volume finds a volume by name or, if that is empty, by id; or nil.
func (d *disks) volume(id, name string) *lvmdv1.Volume {
	if name == "" {
		return d.volumes[id]
	}
	return d.named(name)
}

func (d *disks) named(name string) *lvmdv1.Volume {
	for _, v := range d.volumes {
		if v.GetName() == name {
			return v
		}
	}
	return nil
}

func (d *disks) snapshot(id, name string) *lvmdv1.Snapshot {
	for _, snapshot := range d.snapshots {
		if snapshot.GetId() == id || name != "" && snapshot.GetName() == name {
			return snapshot
		}
	}
	return nil
}

// source returns a snapshot as a volume.
func (d *disks) source(from *lvmdv1.VolumeSource) (*lvmdv1.Volume, error) {
	if id := from.GetSnapshotId(); id != "" {
		s := d.snapshots[id]
		if s == nil {
			return nil, apierror.SnapshotNotFound(id)
		}
		return &lvmdv1.Volume{DeviceClass: s.GetDeviceClass(), FsType: s.GetFsType(), Mode: s.GetMode(), SizeBytes: s.GetSizeBytes()}, nil
	}
	v := d.volumes[from.GetVolumeId()]
	if v == nil {
		return nil, apierror.VolumeNotFound(from.GetVolumeId())
	}
	return v, nil
}

func volumeOf(r *lvmdv1.CreateVolumeRequest, class *Class) *lvmdv1.Volume {
	v := &lvmdv1.Volume{
		Name: r.GetName(), DeviceClass: class.Name, SizeBytes: roundUp(r.GetRequiredBytes()), Mode: r.GetMode(), FsType: r.GetFsType(),
		Profile: r.GetProfile(), FsSettings: r.GetFsSettings(), Owner: proto.CloneOf(r.GetOwner()), Source: proto.CloneOf(r.GetSource()),
		Encryption: r.GetEncryption(), EncryptionDiscards: r.GetEncryptionDiscards(), IoLimits: proto.CloneOf(r.GetIoLimits()),
		State: lvmdv1.VolumeState_VOLUME_STATE_READY, Provisional: r.GetProvisional(),
	}
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		v.FsType = cmp.Or(v.GetFsType(), "ext4")
	}
	return v
}

// identify sets what the server chooses. The device is 253:N, where N counts the devices ever made.
func (d *disks) identify(v *lvmdv1.Volume, class *Class) {
	d.devices++
	v.Id, v.CreatedAt = "cv"+newID(), timestamppb.New(time.Now())
	v.VgName, v.VgUuid = class.group(), d.groupUUID(class)
	v.DevicePath, v.DeviceMajor, v.DeviceMinor = "/dev/"+v.GetVgName()+"/"+v.GetId(), 253, d.devices
	if v.GetEncryption() == names.EncryptionEphemeral {
		v.DevicePath = "/dev/mapper/carve.crypt." + v.GetId()
	}
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		v.FsUuid = fmt.Sprintf("00000000-0000-4000-8000-%012d", d.devices)
	}
}

func headerBytes(v *lvmdv1.Volume) int64 {
	if v.GetEncryption() == names.EncryptionLUKS {
		return luks.HeaderBytes
	}
	return 0
}

func roundUp(size int64) int64 { return (size + AllocationUnit - 1) / AllocationUnit * AllocationUnit }

// free returns the largest possible volume, in bytes.
func (d *disks) free(c *Class) int64 {
	free := c.Bytes
	take := func(class string, bytes int64) {
		if of := d.classes[class]; of != nil && of.group() == c.group() {
			unit, volume := of.costs()
			free -= bytes/AllocationUnit*unit + volume
		}
	}
	for _, v := range d.volumes {
		take(v.GetDeviceClass(), v.GetSizeBytes()+headerBytes(v))
	}
	for _, snapshot := range d.snapshots {
		take(snapshot.GetDeviceClass(), snapshot.GetSizeBytes())
	}
	unit, volume := c.costs()
	return max(0, (free-volume)/unit*AllocationUnit)
}

func (d *disks) allReports() []*lvmdv1.DeviceClass {
	var out []*lvmdv1.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(d.classes)) {
		out = append(out, d.report(d.classes[name]))
	}
	return out
}

// reports covers the class and those that share its group.
func (d *disks) reports(class string) []*lvmdv1.DeviceClass {
	var out []*lvmdv1.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(d.classes)) {
		if of := d.classes[class]; of != nil && d.classes[name].group() == of.group() {
			out = append(out, d.report(d.classes[name]))
		}
	}
	return out
}

func (d *disks) report(c *Class) *lvmdv1.DeviceClass {
	free := d.free(c)
	unit, volume := c.costs()
	layout, total := "linear", c.Bytes
	switch {
	case c.Thin:
		layout, unit, volume = "thin", 0, 0
	case c.Mirrored:
		layout, total = "raid1", max(0, (c.Bytes-volume)/unit*AllocationUnit)
	}
	return &lvmdv1.DeviceClass{
		Name: c.Name, Default: c.Default, Type: layout, Medium: "disk", Conditions: c.Conditions, Groups: c.Groups,
		VgName: c.group(), VgUuid: d.groupUUID(c),
		TotalBytes: total, AvailableBytes: free, MaximumVolumeSizeBytes: free,
		MinimumVolumeSizeBytes: AllocationUnit, AllocationUnitBytes: AllocationUnit, UnitCostBytes: unit, VolumeCostBytes: volume,
	}
}

func (d *disks) groupUUID(c *Class) string { return d.id + "-" + c.group() }

func (d *disks) sorted() []*lvmdv1.Volume {
	return slices.SortedFunc(maps.Values(d.volumes), func(a, b *lvmdv1.Volume) int { return strings.Compare(a.GetId(), b.GetId()) })
}

// newID returns 26 random characters of the alphabet of ids.
func newID() string { return strings.ToLower(rand.Text()) }
