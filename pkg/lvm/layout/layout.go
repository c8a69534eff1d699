package layout

import (
	"fmt"
	"slices"
	"strings"
)

// Type is how a volume lies on the devices of its group, by the name
// that lvcreate's --type has for it.
type Type string

// Layout types. The empty one is Linear.
const (
	Linear  Type = "linear"
	Striped Type = "striped"
	RAID1   Type = "raid1"
	RAID10  Type = "raid10"
	RAID5   Type = "raid5"
	RAID6   Type = "raid6"
)

// MaxStripes is the most stripes that a configuration may ask for.
const MaxStripes = 64

// MinRAIDExtent is the smallest extent in which the bookkeeping of a RAID
// image always fits: two headers of 4 KiB and a bit for each of at most 2^21
// regions. Groups with smaller extents take no RAID volumes.
const MinRAIDExtent = 512 << 10

// PMEMAlignment is the size of a huge page: mappings of files in persistent memory can use
// those only when volumes begin and end at multiples of it.
const PMEMAlignment = 2 << 20

// Layout is a layout type with its measures. The zero value is linear.
//
// A volume of any type but linear lies on exactly Devices devices, each of
// which holds one stripe, copy or parity of it and nothing else of it when it
// is made. LVM left alone would continue a RAID image on a device that holds
// another image once the first is full, and the loss of one device would then
// be the loss of two images.
type Layout struct {
	Type Type
	// Stripes counts the devices that data is spread over, without copies and
	// parity: at least 2 for striped, raid10 and raid5, 3 for raid6; 0 or 1
	// for the others.
	Stripes int
	// StripeSize is in bytes, a power of two from 4 KiB to the extent's size;
	// 0 leaves it to LVM, and for types without stripes.
	StripeSize int64
	// Mirrors counts the copies beside the first: at least 1 for raid1, 1 for
	// raid10, 0 for the others.
	Mirrors int
}

// IsLinear reports whether a volume may lie on any extents of any devices.
func (l Layout) IsLinear() bool { return l.Type == "" || l.Type == Linear }

// IsRAID reports whether the volume is made of images with bookkeeping of their
// own.
func (l Layout) IsRAID() bool {
	return slices.Contains([]Type{RAID1, RAID10, RAID5, RAID6}, l.Type)
}

// Devices is on how many devices a volume lies; 0 when it may be any number.
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

// Unit is how many extents of a volume one extent on each of its devices is: a
// volume's size is a multiple of it.
func (l Layout) Unit() int64 { return int64(max(1, l.Stripes)) }

// RoundUp rounds a size in extents up to a multiple of the unit.
func (l Layout) RoundUp(extents int64) int64 {
	unit := l.Unit()
	return (extents + unit - 1) / unit * unit
}

// Raw is how many extents of the group a volume of so many extents, a multiple
// of the unit, takes in all.
func (l Layout) Raw(extents int64) int64 {
	if l.IsLinear() {
		return extents
	}
	return int64(l.Devices()) * (extents/l.Unit() + l.bookkeeping())
}

// RawGrowth is how many extents of the group a volume takes that grows by so
// many, a multiple of the unit: its bookkeeping does not grow.
func (l Layout) RawGrowth(more int64) int64 {
	if l.IsLinear() {
		return more
	}
	return int64(l.Devices()) * (more / l.Unit())
}

// bookkeeping is how many extents of each device are not data.
func (l Layout) bookkeeping() int64 {
	if l.IsRAID() {
		return 1
	}
	return 0
}

// Segments bounds how many segments a volume has whose data has so many on each
// device, and counts the components it is made of.
func (l Layout) Segments(each int64) int64 {
	if !l.IsRAID() {
		return each
	}
	// An image and its bookkeeping per device, each about twice a segment's text.
	return 2 + int64(l.Devices())*(each+6)
}

// Text bounds what a volume takes in the metadata, in bytes, whose data has
// so many segments on each device: see VolumeText. LVM gives the tags to the
// hidden volumes with a RAID volume's bookkeeping, too.
func (l Layout) Text(tags []string, each int64) int64 {
	n := VolumeText(tags, l.Segments(each))
	if l.IsRAID() {
		n += int64(l.Devices()) * (VolumeText(tags, 0) - VolumeText(nil, 0))
	}
	return n
}

// Commits is by how much making a volume raises the group's sequence number:
// the bookkeeping of RAID images is cleared while they are visible, which is a
// change of its own.
func (l Layout) Commits() uint64 {
	if l.IsRAID() {
		return raidCommits
	}
	return 1
}

// raidCommits is what LVM 2.03 does; the suite that Host passes holds it to it.
const raidCommits = 2

func (l Layout) String() string {
	if l.IsLinear() {
		return string(Linear)
	}
	return fmt.Sprintf("%s over %d devices", l.Type, l.Devices())
}

// Of is the layout of a segment as LVM describes it: its type, on how
// many devices or images it lies, and its stripe size in bytes. Types that
// Carve does not make are known by their name alone.
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
	// Variants differ in where the parity lies.
	case kind == string(RAID5), strings.HasPrefix(kind, "raid5_"):
		return Layout{Type: RAID5, Stripes: devices - 1, StripeSize: stripeSize}
	case kind == string(RAID6), strings.HasPrefix(kind, "raid6_"):
		return Layout{Type: RAID6, Stripes: devices - 2, StripeSize: stripeSize}
	}
	return Layout{Type: Type(kind)}
}
