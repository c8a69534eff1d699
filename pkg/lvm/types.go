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
	// Seqno is raised by LVM with every change of the metadata.
	Seqno uint64
	// ExtentSize is in bytes.
	ExtentSize int64
	// Extents and FreeExtents count the extents of all physical volumes.
	// FreeExtents may include extents that cannot be allocated; see Allocatable.
	Extents, FreeExtents int64
	// MissingDevices counts the physical volumes that cannot be found. LVM
	// refuses to change a group while there are any.
	MissingDevices int
	Access
	// MostVolumes is how many volumes the group may have, as an administrator set it
	// (vgchange --logicalvolume); zero is no limit. Components of volumes do not count.
	MostVolumes int64
	// Allocation is the group's allocation policy, in vgs(8)'s words.
	Allocation string
	// FreeSegments counts the runs of free extents: a linear volume of all
	// that is free consists of that many segments.
	FreeSegments int64

	Devices []PhysicalVolume
	Volumes []Volume
	Unmade  Unmade
}

// Access is what LVM lets this machine do with a group.
type Access struct {
	// Exported and ReadOnly groups cannot be changed.
	Exported, ReadOnly bool
	// Foreign says what has LVM hide the group from this machine, such as the system ID of another one; else it
	// is empty. No Scan returns such a group: see Other.
	Foreign string
}

// Unmade are the thin snapshots that their pools do not have: the command that made them was killed
// before, and the next one that changes the pool makes them, of what their origins hold then.
type Unmade struct {
	Names []string
	// Unknown is true when it cannot be seen which they are: a pool is not active or failed, or another
	// command has the group.
	Unknown bool
}

// Identity is what a group is known by.
type Identity struct {
	// UUID is the group's, and Devices are those of its physical volumes, in order. Without
	// any, as at first, any will do.
	UUID    string
	Devices []string
}

// Equal reports whether two identities are the same.
func (i Identity) Equal(other Identity) bool {
	return i.UUID == other.UUID && slices.Equal(i.Devices, other.Devices)
}

// Identity is what the group is known by from now on: the physical volumes that its metadata
// has, those that are missing among them.
func (g *Group) Identity() Identity {
	i := Identity{UUID: g.UUID}
	for _, d := range g.Devices {
		i.Devices = append(i.Devices, d.UUID)
	}
	slices.Sort(i.Devices)
	return i
}

// Fits reports whether a group may be the one of the identity: it has the UUID, and at least one of
// the physical volumes is there. A group's metadata can list any, so that those that are
// missing prove nothing.
func (g *Group) Fits(i Identity) bool {
	return g.UUID == i.UUID && (len(i.Devices) == 0 || slices.ContainsFunc(g.Devices, func(d PhysicalVolume) bool {
		return !d.Missing && slices.Contains(i.Devices, d.UUID)
	}))
}

// Excluded is a device that is not looked at, as what it holds is a user's.
type Excluded struct {
	// Path is the device's, and Reason says what it lies on.
	Path, Reason string
	// Imitates names the group of which the device shows the UUID, as if it were a disk of it.
	Imitates string
}

// Other is a group of a name that is not taken for the one of the name.
type Other struct {
	UUID string
	// Paths are those of its devices that are there.
	Paths []string
	// Duplicates are those of its physical volumes that are on several devices.
	Duplicates []Duplicate
	// Foreign is Access.Foreign: this is the group itself, or the only one that may be.
	Foreign string
}

// Duplicate is a physical volume that is on several devices, as after one was copied block by
// block: which of them holds the newest data cannot be known.
type Duplicate struct {
	// UUID is the physical volume's.
	UUID  string
	Paths []string
}

// PhysicalVolume is one device of a volume group.
type PhysicalVolume struct {
	// Path is the device node LVM found it at; of a missing one, what it
	// was before, or a placeholder.
	Path, UUID string
	// Missing is true when the device cannot be found.
	Missing bool
	// Allocatable is false when an administrator forbade new extents on it.
	Allocatable bool
	// Extents and AllocatedExtents count this device's.
	Extents, AllocatedExtents int64
	// Free has its free extents, in order, whether they can be allocated or not.
	Free []layout.Run
	// DAX is true when the kernel can map its contents directly into memory.
	DAX bool
	// DataOffset is where the first extent begins, in bytes.
	DataOffset int64
}

// Volume is a logical volume that LVM shows to users; the components of
// mirrors and pools are not among them.
type Volume struct {
	Name, UUID string
	// Size is in bytes, a whole number of extents.
	Size int64
	// Segments counts its segments on the devices.
	Segments int64
	Tags     []string
	// Created is when LVM says it was made, to the second, or zero where it does not say.
	Created time.Time
	Attr    Attr
	// Layout and On are those of ondisk.Volume.
	Layout layout.Layout
	On     []string
	// Synced is how much of a RAID volume's copies or parity is true, in
	// hundredths of a percent; 10000 for others, and where LVM does not know.
	Synced int64
	// Mismatches counts the sectors a scrub of a RAID volume found to differ.
	Mismatches int64
	// Pool is the thin pool that a thin volume draws from; empty for others.
	Pool string
	// Origin is the volume that a thin volume is a snapshot of, while that
	// volume is there.
	Origin string
	// Merging is the snapshot with a size of its own that is merged into the volume, where that is known.
	Merging string
	// MetadataSize is a thin pool's, in bytes; zero for others.
	MetadataSize int64
}

// Allocatable counts the extents that a new linear volume can use: the free
// ones on devices that are present and open for allocation. It is zero when
// the group cannot be changed at all.
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

// Free is what can be allocated on each device: nothing when the group cannot
// be changed at all.
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

// Striped is the layout of a volume with a stripe on each device that is open for allocation, as
// far as there may be so many stripes. A missing device counts: it may come back.
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

// FreeIn is Free with the extents that are free by a later placement than the
// scan that the rest of the group is from.
func (g *Group) FreeIn(p ondisk.Placement) []layout.Free {
	later := *g
	later.Devices = slices.Clone(g.Devices)
	for i, d := range later.Devices {
		later.Devices[i].Free = p.Free[d.UUID]
	}
	return later.Free()
}

// PathsOf are the paths of the devices with the given UUIDs.
func (g *Group) PathsOf(uuids []string) []string {
	var paths []string
	for _, d := range g.Devices {
		if slices.Contains(uuids, d.UUID) {
			paths = append(paths, d.Path)
		}
	}
	return paths
}
