package lvmd

import (
	"fmt"
	"strings"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// room is how many extents a new volume of the class can have in this group,
// beside all operations under way. The caller holds the model's lock.
func (c *part) room() int64 {
	if c.pool != nil {
		if !c.group.present || !c.group.hasThinText() {
			return 0
		}
		return c.pool.freeRoom()
	}
	if c.group.placed {
		return c.placedRoom(true)
	}
	return max(0, c.roomBesideExpansions()-c.group.expanding)
}

// reportedRoom is how many extents a new volume can have as it is reported to watchers: an
// expansion counts only once the volume's new size is reported, too. It is nothing where no
// volume can be created, but those there are may grow.
func (c *part) reportedRoom() int64 {
	if !c.group.mayHaveMore() || c.unfit() != nil {
		return 0
	}
	return c.roomBesideExpansions()
}

func (c *part) roomBesideExpansions() int64 {
	g := c.group
	if c.pool != nil {
		if !g.present || !g.hasThinText() {
			return 0
		}
		return c.pool.reportedRoom()
	}
	if g.placed {
		return c.placedRoom(false)
	}
	if !g.present || g.textFull() {
		return 0
	}
	return max(0, g.allocatable-g.creating-c.reserved())
}

// placedRoom is the largest volume in extents where the group is placed.
func (c *part) placedRoom(growth bool) int64 {
	g := c.group
	if !g.present || !g.hasText(c.layout().Text([]string{strings.Repeat("x", typicalTags)}, max(1, g.fragments))) {
		return 0
	}
	largest, _ := c.capacity(growth)
	return largest
}

// reserved is how many extents of the group the class leaves free.
func (c *part) reserved() int64 {
	g := c.group
	// Rounded up to extents, without a sum that could overflow.
	bytes := c.Reserve.Of(g.info.Extents * g.info.ExtentSize)
	reserve := bytes / g.info.ExtentSize
	if bytes%g.info.ExtentSize != 0 {
		reserve++
	}
	return reserve
}

// typicalTags bounds what the tags of most volumes take of the metadata.
const typicalTags = 500

// hasText tells whether the group's metadata has room for one more piece of
// text of so many bytes, beside what is promised already.
func (g *group) hasText(bytes int64) bool {
	m := g.metadata
	m.Size += g.promisedText + bytes
	return m.Fits(nil, 0)
}

// mayHaveMore reports whether the group may have one more volume, beside those that are
// being created.
func (g *group) mayHaveMore() bool {
	return g.info.MostVolumes == 0 || int64(len(g.exists))+g.creations < g.info.MostVolumes
}

// errTooMany says that a group may not have more volumes, in words for what is refused.
func (g *group) errTooMany(what string) error {
	return noSpace("%s: volume group %q has all of the %d logical volumes that it may have; vgchange --logicalvolume 0 %s lifts the limit",
		what, g.name, g.info.MostVolumes, g.name)
}

// unfit says why the class cannot have volumes in a group that it was configured with, or
// nothing. A group that is there when lvmd starts is fit, or the configuration is refused;
// one that appears later may be anything.
func (c *part) unfit() error {
	if c.Medium != config.PMEM || !c.group.present {
		return nil
	}
	return pmemProblem(&c.group.info)
}

// textFull reports whether the metadata has no space for a volume of all that is free.
func (g *group) textFull() bool {
	return !g.hasText(lvm.VolumeText(nil, max(1, g.fragments)) + typicalTags)
}

func condition(kind, format string, args ...any) *lvmdv1.Condition {
	return &lvmdv1.Condition{Type: kind, Message: fmt.Sprintf(format, args...)}
}

// A finding is a condition that a letter of lv_attr makes of a volume.
type finding struct{ kind, message string }

// What becomes of lv_attr, whose letters lvs(8) lists by position. Letters that
// are in none of these tables make no condition:
//
//   - 1, type: all others are ways to lie, which layouts are told by, or parts of
//     volumes. That a mirror was not synchronised at first is how lvmd makes them;
//     an image out of sync is told of the whole by the kernel, see raid.go.
//   - 2, permissions: r and R are ReadOnly, w is usual.
//   - 3, 4, allocation and minor number: how LVM is to choose. Extents that are
//     locked are being moved by pvmove, while the volume is as good as ever.
//   - 5, state: of a, s, d, i and - the device is asked itself, now: it is Inactive
//     without a live table, and Suspended while the kernel holds back its I/O. h is of
//     volumes that are gone, which are not asked for.
//   - 6, open: usual, and nobody's business.
//   - 7, target: all others are known kinds of devices.
//   - 8, zeroing: of pools, see pool.conditions.
//   - 9, health: w is what an administrator asked for (lvchange --writemostly). Of
//     RAID the kernel tells r and m at any time; LVM only when it was asked.
//   - 10, k: whoever set it does not want it active; then it is Inactive.
var (
	typeFindings = map[byte]finding{
		'O': {"Merging", "a snapshot is being merged into the volume"},
		'S': {"Merging", "the volume is being merged into the one that it is a snapshot of"},
		'c': {"Converting", "how the volume lies is being changed (lvconvert)"},
	}
	activationFindings = map[lvm.Activation]finding{
		lvm.InvalidSnapshot:   {"InvalidSnapshot", "the snapshot overflowed and holds nothing that can be used"},
		lvm.MergeFailed:       {"MergeFailed", "merging a snapshot into the volume failed"},
		lvm.CheckNeeded:       {"CheckNeeded", "the metadata of its pool had an error and must be checked (lvconvert --repair)"},
		lvm.UnknownActivation: {"StateUnknown", "LVM could not ask the kernel for the volume's state"},
	}
	targetFindings = map[byte]finding{
		'u': {"UnknownTarget", "LVM does not know the kind of device that the kernel has for the volume"},
	}
	healthFindings = map[lvm.Health]finding{
		lvm.Partial:          {"MissingDevice", "a device that the volume lies on is missing"},
		lvm.RefreshNeeded:    {"RefreshNeeded", "a device of the volume came back or had write errors"},
		lvm.MismatchesExist:  {"Mismatches", "a check found copies or parity that differ"},
		lvm.Reshaping:        {"Reshaping", "how the volume lies is being changed (lvconvert)"},
		lvm.ReshapeRemoved:   {"ReshapeLeftovers", "devices are left over from a change of how the volume lies; the same lvconvert again removes them"},
		lvm.Failed:           {"Failed", "the volume answers no more I/O"},
		lvm.OutOfDataSpace:   {"PoolFull", "its pool is full: writes to new blocks fail"},
		lvm.MetadataReadOnly: {"PoolReadOnly", "the metadata of its pool cannot be written"},
		lvm.WriteCacheError:  {"WriteCacheErrors", "its write cache had an error"},
		lvm.UnknownHealth:    {"HealthUnknown", "LVM could not tell the volume's health"},
	}
)

// conditionsOf translates what LVM and the kernel say of a volume.
func conditionsOf(lv *lvm.Volume, d lvm.Device, active bool) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	add := func(f finding) {
		if f.kind != "" {
			c = append(c, condition(f.kind, "%s", f.message))
		}
	}
	if health := lv.Attr.Health; !lv.Layout.IsRAID() || health != lvm.RefreshNeeded && health != lvm.MismatchesExist {
		add(healthFindings[health])
	}
	switch {
	case !active:
		add(finding{"Inactive", "the volume has no device"})
	case d.Suspended:
		add(finding{"Suspended", "the kernel holds back the volume's I/O"})
	}
	add(activationFindings[lv.Attr.Activation])
	if !lv.Attr.Writable {
		add(finding{"ReadOnly", "the volume is read-only"})
	}
	add(typeFindings[lv.Attr.Type])
	add(targetFindings[lv.Attr.Target])
	return c
}
