package lvm

import (
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Group is a volume group as its metadata describes it.
type Group struct {
	Name, UUID string
	Seqno      uint64
	// ExtentSize is in bytes.
	ExtentSize int64
	// FreeExtents may include extents that cannot be allocated; see Allocatable.
	Extents, FreeExtents int64
	// LVM refuses to change a group with MissingDevices.
	MissingDevices int
	Access
	// MostVolumes is the administrator's limit (vgchange --logicalvolume); zero means none.
	// Components do not count.
	MostVolumes int64
	// Allocation is the policy, in vgs(8)'s words.
	Allocation string
	// FreeSegments counts the runs of free extents.
	FreeSegments int64

	Devices []PhysicalVolume
	Volumes []Volume
	Unmade  Unmade
}

// Access says what LVM lets this machine do with a group.
type Access struct {
	// LVM refuses to change Exported and ReadOnly groups.
	Exported, ReadOnly bool
	// Foreign says why LVM hides the group from this machine, such as another
	// machine's system ID; empty otherwise. Scan returns no such group, see
	// Other.
	Foreign string
}

// Unmade lists thin snapshots that are in the metadata but not in their
// pools. The command that created them was killed; the next one that changes
// the pool creates them, with the contents that their origins have then.
type Unmade struct {
	Names []string
	// Unknown means that Names may be incomplete: a pool is inactive or
	// failed, or another command holds the group's lock.
	Unknown bool
}

// Identity identifies a group beyond its name.
type Identity struct {
	// UUID is the group's, and Devices are the sorted UUIDs of its physical
	// volumes. Empty means any.
	UUID    string
	Devices []string
}

// Equal reports whether two identities are the same.
func (i Identity) Equal(other Identity) bool {
	return i.UUID == other.UUID && slices.Equal(i.Devices, other.Devices)
}

// Identity returns the group's identity by its metadata, missing physical
// volumes included.
func (g *Group) Identity() Identity {
	i := Identity{UUID: g.UUID}
	for _, d := range g.Devices {
		i.Devices = append(i.Devices, d.UUID)
	}
	slices.Sort(i.Devices)
	return i
}

// Fits reports whether the group has the identity's UUID and at least one of
// its physical volumes present. Missing ones prove nothing: a group's
// metadata can list any.
func (g *Group) Fits(i Identity) bool {
	return g.UUID == i.UUID && (len(i.Devices) == 0 || slices.ContainsFunc(g.Devices, func(d PhysicalVolume) bool {
		return !d.Missing && slices.Contains(i.Devices, d.UUID)
	}))
}

// Excluded is a device that Carve does not read, because its contents are a
// user's.
type Excluded struct {
	// Reason says what the device lies on.
	Path, Reason string
	// Imitates names the group whose UUID the device shows, as if it were one
	// of its disks.
	Imitates string
}

// Other is a group that has the name of a wanted group and is not used in its
// place.
type Other struct {
	UUID string
	// Paths are its present devices.
	Paths      []string
	Duplicates []Duplicate
	// Foreign is Access.Foreign. If it is set, this is the wanted group
	// itself, or the only candidate.
	Foreign string
}

// Duplicate is a physical volume on several devices, such as after a block
// copy. Which of them has the newest data is unknown.
type Duplicate struct {
	UUID  string
	Paths []string
}

// PhysicalVolume is one device of a volume group.
type PhysicalVolume struct {
	// Path is the device node where LVM found it. For a missing one it is the
	// last known path or a placeholder.
	Path, UUID string
	Missing    bool
	// Allocatable is false if an administrator forbade new extents (pvchange -x).
	Allocatable               bool
	Extents, AllocatedExtents int64
	// Free lists its free extents in order, allocatable or not.
	Free []layout.Run
	// DAX means that the kernel can map the contents directly into memory.
	DAX bool
	// DataOffset is the first extent's, in bytes.
	DataOffset int64
}

// Volume is a logical volume that LVM shows to users, unlike components.
type Volume struct {
	Name, UUID string
	// Size is in bytes.
	Size     int64
	Segments int64
	Tags     []string
	// Created is to the second; zero if LVM does not report it.
	Created time.Time
	Attr    Attr
	// Layout is that of the last segment, and On lists the UUIDs of the
	// physical volumes below.
	Layout layout.Layout
	On     []string
	// Synced is the part of a RAID volume's copies or parity that is in sync, in hundredths of
	// a percent; 10000 also for other volumes, and where LVM does not know.
	Synced int64
	// Mismatches is the count of sectors of the last scrub of a RAID volume.
	Mismatches int64
	// Pool is set for thin volumes only.
	Pool string
	// Origin is the volume of which this one is a snapshot, while it exists.
	Origin string
	// Merging names the snapshot with a size of its own that LVM is merging
	// into this volume, if known.
	Merging string
	// MetadataSize is a thin pool's, in bytes.
	MetadataSize int64
}

// Allocatable counts the extents that a new linear volume can use: free ones
// on devices that are present and allocatable. It is zero when the group
// cannot be changed.
func (g *Group) Allocatable() int64 {
	if g.MissingDevices > 0 || g.Exported || g.ReadOnly {
		return 0
	}
	var n int64
	for _, d := range g.Devices {
		if d.Allocatable && !d.Missing {
			n += d.Extents - d.AllocatedExtents
		}
	}
	return n
}

// Free returns the allocatable extents of each device, or nil when the group
// cannot be changed.
func (g *Group) Free() []layout.Free {
	if g.MissingDevices > 0 || g.Exported || g.ReadOnly {
		return nil
	}
	var free []layout.Free
	for _, d := range g.Devices {
		if d.Allocatable && !d.Missing {
			free = append(free, layout.Free{Device: d.Path, Runs: d.Free})
		}
	}
	return free
}

// Striped returns the layout of a volume with a stripe on each allocatable
// device, up to layout.MaxStripes. Missing devices count: they may come back.
func (g *Group) Striped(stripeSize int64) layout.Layout {
	n := 0
	for i := range g.Devices {
		if g.Devices[i].Allocatable {
			n++
		}
	}
	return layout.Of(string(layout.Striped), min(n, layout.MaxStripes), stripeSize)
}

// Volume returns the volume with the given name, or nil.
func (g *Group) Volume(name string) *Volume {
	for i := range g.Volumes {
		if g.Volumes[i].Name == name {
			return &g.Volumes[i]
		}
	}
	return nil
}

// FreeIn is Free with the free extents of a placement that is newer than the
// scan.
func (g *Group) FreeIn(p ondisk.Placement) []layout.Free {
	later := *g
	later.Devices = slices.Clone(g.Devices)
	for i, d := range later.Devices {
		later.Devices[i].Free = p.Free[d.UUID]
	}
	return later.Free()
}

// PathsOf returns the paths of the devices with the given UUIDs.
func (g *Group) PathsOf(uuids []string) []string {
	var paths []string
	for _, d := range g.Devices {
		if slices.Contains(uuids, d.UUID) {
			paths = append(paths, d.Path)
		}
	}
	return paths
}
