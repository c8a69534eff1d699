package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LayoutType is how a volume lies on the devices of its group, by the name
// that lvcreate's --type has for it.
type LayoutType string

// Layout types. The empty one is Linear.
const (
	Linear  LayoutType = "linear"
	Striped LayoutType = "striped"
	RAID1   LayoutType = "raid1"
	RAID10  LayoutType = "raid10"
	RAID5   LayoutType = "raid5"
	RAID6   LayoutType = "raid6"
)

// MinRAIDExtent is the smallest extent in which the bookkeeping of a RAID
// image always fits: two headers of 4 KiB and a bit for each of at most 2^21
// regions. Groups with smaller extents take no RAID volumes.
const MinRAIDExtent = 512 << 10

// Layout is a layout type with its measures. The zero value is linear.
//
// A volume of any type but linear lies on exactly Devices devices, each of
// which holds one stripe, copy or parity of it and nothing else of it when it
// is made. LVM left alone would continue a RAID image on a device that holds
// another image once the first is full, and the loss of one device would then
// be the loss of two images.
type Layout struct {
	Type LayoutType
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

// IsLinear tells whether a volume may lie on any extents of any devices.
func (l Layout) IsLinear() bool { return l.Type == "" || l.Type == Linear }

// IsRAID tells whether the volume is made of images with bookkeeping of their
// own.
func (l Layout) IsRAID() bool {
	return slices.Contains([]LayoutType{RAID1, RAID10, RAID5, RAID6}, l.Type)
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

// Segments bounds in how many pieces a volume lies whose data lies in so many
// pieces on each device, and counts the hidden volumes it is made of.
func (l Layout) Segments(pieces int64) int64 {
	if !l.IsRAID() {
		return pieces
	}
	// An image and its bookkeeping per device, each about twice a segment's text.
	return 2 + int64(l.Devices())*(pieces+6)
}

// Text bounds what a volume takes in the metadata, in bytes, whose data lies in
// so many pieces on each device: see VolumeText. LVM gives the tags to the
// hidden volumes with a RAID volume's bookkeeping, too.
func (l Layout) Text(tags []string, pieces int64) int64 {
	n := VolumeText(tags, l.Segments(pieces))
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

// createArgs are lvcreate's arguments. Neither mirrors nor raid10 volumes are
// synchronised when they are made: nobody reads what nobody wrote, and what is
// written goes to all copies. Parity must be true before a disk is lost, so
// that raid5 and raid6 are.
func (l Layout) createArgs() []string {
	if l.IsLinear() {
		return []string{"--type", string(Linear)}
	}
	args := []string{"--type", string(l.Type)}
	if l.Type != RAID1 {
		args = append(args, "--stripes", strconv.Itoa(l.Stripes))
		if l.StripeSize > 0 {
			args = append(args, "--stripesize", strconv.FormatInt(l.StripeSize, 10)+"b")
		}
	}
	if l.Mirrors > 0 {
		args = append(args, "--mirrors", strconv.Itoa(l.Mirrors), "--nosync")
	}
	return args
}

func (l Layout) String() string {
	if l.IsLinear() {
		return string(Linear)
	}
	return fmt.Sprintf("%s over %d devices", l.Type, l.Devices())
}

// layoutOf is the layout of a segment as LVM describes it: its type, on how
// many devices or images it lies, and its stripe size in bytes. Types that
// Carve does not make are told by their name alone.
func layoutOf(kind string, devices int, stripeSize int64) Layout {
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
	return Layout{Type: LayoutType(kind)}
}
