package lvmd

import (
	"fmt"
	"strings"

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
	return max(0, c.reportedRoom()-c.group.expanding)
}

// reportedRoom is the room as watchers are told it: an expansion counts only
// once the volume's new size is told too.
func (c *part) reportedRoom() int64 {
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

// textFull tells whether the metadata has no room for a volume of all that is
// free.
func (g *group) textFull() bool {
	return !g.hasText(lvm.VolumeText(nil, max(1, g.fragments)) + typicalTags)
}

func condition(kind, format string, args ...any) *lvmdv1.Condition {
	return &lvmdv1.Condition{Type: kind, Message: fmt.Sprintf(format, args...)}
}

// conditionsOf translates what LVM and the kernel say of a volume.
func conditionsOf(lv *lvm.Volume, d lvm.Device, active bool) []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	add := func(kind, message string) { c = append(c, condition(kind, "%s", message)) }
	health := lv.Attr.Health
	if lv.Layout.IsRAID() && (health == lvm.RefreshNeeded || health == lvm.MismatchesExist) {
		// The kernel says so at any time; LVM said so when it was asked.
		health = lvm.Healthy
	}
	switch health {
	case lvm.Healthy, lvm.UnknownHealth, lvm.WriteMostly:
	case lvm.Partial:
		add("MissingDevice", "a device that the volume lies on is missing")
	case lvm.RefreshNeeded:
		add("RefreshNeeded", "a device of the volume came back or had write errors")
	case lvm.Failed:
		add("Failed", "the volume answers no more I/O")
	default:
		add("Unhealthy", health.String())
	}
	switch {
	case !active:
		add("Inactive", "the volume has no device")
	case d.Suspended:
		add("Suspended", "the kernel holds back the volume's I/O")
	}
	if !lv.Attr.Writable {
		add("ReadOnly", "the volume is read-only")
	}
	return c
}
