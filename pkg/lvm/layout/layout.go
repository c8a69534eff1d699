package layout

import (
	"fmt"
	"slices"
	"strings"
)

// Type is a segment type, named as for lvcreate --type.
type Type string

// Layout types. An empty one means Linear.
const (
	Linear  Type = "linear"
	Striped Type = "striped"
	RAID1   Type = "raid1"
	RAID10  Type = "raid10"
	RAID5   Type = "raid5"
	RAID6   Type = "raid6"
)

// MaxStripes is the largest configurable number of stripes.
const MaxStripes = 64

// MinRAIDExtent is the smallest extent that always holds the bookkeeping of a RAID image: two
// headers of 4 KiB and a bit for each of at most 2^21 regions. Groups with smaller extents
// accept no RAID volumes.
const MinRAIDExtent = 512 << 10

// PMEMAlignment is the size of a huge page. Mappings of files in persistent memory can use huge
// pages only if volumes begin and end at multiples of it.
const PMEMAlignment = 2 << 20

// Layout is a layout type with its parameters. The zero value is linear.
//
// A volume of any other type lies on exactly Devices devices, each with one stripe, copy or
// parity and nothing else of the new volume. Left alone, LVM would continue a RAID image on
// another image's device, and losing that device would lose two images.
type Layout struct {
	Type Type
	// Stripes counts the data devices, without copies and parity: at least 2 for striped,
	// raid10 and raid5, 3 for raid6; 0 or 1 for the others.
	Stripes int
	// StripeSize is in bytes, a power of two from 4 KiB to the extent size; 0 leaves it to LVM,
	// or means no stripes.
	StripeSize int64
	// Mirrors counts the copies beside the first: at least 1 for raid1, 1 for raid10, 0 for the
	// others.
	Mirrors int
}

// IsLinear reports whether a volume may lie on any extents of any devices.
func (l Layout) IsLinear() bool { return l.Type == "" || l.Type == Linear }

// IsRAID reports whether the volume consists of images with bookkeeping.
func (l Layout) IsRAID() bool {
	return slices.Contains([]Type{RAID1, RAID10, RAID5, RAID6}, l.Type)
}

// Devices returns the number of devices below a volume, or 0 for any number.
func (l Layout) Devices() int {
	switch l.Type {
	case Linear:
		return 0
	case Striped:
		return l.Stripes
	case RAID1:
		return l.Mirrors + 1
	case RAID10:
		return l.Stripes * (l.Mirrors + 1)
	case RAID5:
		return l.Stripes + 1
	case RAID6:
		return l.Stripes + 2
	}
	return 0
}

// Unit returns the volume extents per extent on each device. Sizes are multiples of it.
func (l Layout) Unit() int64 { return int64(max(1, l.Stripes)) }

// RoundUp rounds a size in extents up to a multiple of the unit.
func (l Layout) RoundUp(extents int64) int64 {
	unit := l.Unit()
	return (extents + unit - 1) / unit * unit
}

// Raw returns the group extents that a volume of the given size occupies, redundancy and
// bookkeeping included. extents must be a multiple of the unit.
func (l Layout) Raw(extents int64) int64 {
	if l.IsLinear() {
		return extents
	}
	return int64(l.Devices()) * (extents/l.Unit() + l.bookkeeping())
}

// RawGrowth is Raw for growth, which needs no bookkeeping.
func (l Layout) RawGrowth(more int64) int64 {
	if l.IsLinear() {
		return more
	}
	return int64(l.Devices()) * (more / l.Unit())
}

// bookkeeping returns the extents per device that are not data.
func (l Layout) bookkeeping() int64 {
	if l.IsRAID() {
		return 1
	}
	return 0
}

// Segments bounds the segments and components of a volume whose data has each segments per
// device.
func (l Layout) Segments(each int64) int64 {
	if !l.IsRAID() {
		return each
	}
	// Per device an image and its bookkeeping, each about twice a segment's text.
	return 2 + int64(l.Devices())*(each+6)
}

// Text bounds the metadata of a volume whose data has each segments per device, in bytes; see
// VolumeText. LVM copies the tags to the hidden bookkeeping volumes of a RAID volume.
func (l Layout) Text(tags []string, each int64) int64 {
	n := VolumeText(tags, l.Segments(each))
	if l.IsRAID() {
		n += int64(l.Devices()) * (VolumeText(tags, 0) - VolumeText(nil, 0))
	}
	return n
}

// Commits returns by how much creating a volume raises the sequence number: LVM first makes
// RAID bookkeeping visible to clear it, in a change of its own.
func (l Layout) Commits() uint64 {
	if l.IsRAID() {
		return raidCommits
	}
	return 1
}

// raidCommits is true of LVM 2.03; lvmtest verifies it.
const raidCommits = 2

func (l Layout) String() string {
	if l.IsLinear() {
		return string(Linear)
	}
	return fmt.Sprintf("%s over %d devices", l.Type, l.Devices())
}

// Of returns the layout of a segment by LVM's type, number of devices or images, and stripe
// size in bytes. For a type that Carve does not create, it has only the name.
func Of(kind string, devices int, stripeSize int64) Layout {
	switch {
	case kind == string(Linear), kind == string(Striped) && devices < 2:
		return Layout{Type: Linear}
	case kind == string(Striped):
		return Layout{Type: Striped, Stripes: devices, StripeSize: stripeSize}
	case kind == string(RAID1):
		return Layout{Type: RAID1, Mirrors: devices - 1}
	case kind == string(RAID10):
		return Layout{Type: RAID10, Stripes: devices / 2, StripeSize: stripeSize, Mirrors: 1}
	// Variants differ in the placement of parity.
	case kind == string(RAID5), strings.HasPrefix(kind, "raid5_"):
		return Layout{Type: RAID5, Stripes: devices - 1, StripeSize: stripeSize}
	case kind == string(RAID6), strings.HasPrefix(kind, "raid6_"):
		return Layout{Type: RAID6, Stripes: devices - 2, StripeSize: stripeSize}
	}
	return Layout{Type: Type(kind)}
}
