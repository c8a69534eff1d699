package inventory

import (
	"strings"

	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// freeBytes is what a new volume of the class can have in this group, in bytes.
func (c *classGroup) freeBytes() int64 { return c.free() * c.group.info.ExtentSize }

// free is how many extents a new volume of the class can have in this group,
// beside all operations under way.
func (c *classGroup) free() int64 {
	if c.pool != nil {
		if !c.group.present || !c.group.hasThinText() {
			return 0
		}
		return c.pool.free()
	}
	if c.group.placed {
		return c.placedFree(true)
	}
	return max(0, c.freeBesideExpansions()-c.group.expanding)
}

// reportedFree is how many extents a new volume can have as it is reported to watchers: an
// expansion counts only once the volume's new size is reported, too. It is nothing where no
// volume can be created, but those there are may grow.
func (c *classGroup) reportedFree() int64 {
	if c.unfit() != nil || !c.group.mayHaveMore() {
		return 0
	}
	return c.freeBesideExpansions()
}

func (c *classGroup) freeBesideExpansions() int64 {
	g := c.group
	if c.pool != nil {
		if !g.present || !g.hasThinText() {
			return 0
		}
		return c.pool.reportedFree()
	}
	if g.placed {
		return c.placedFree(false)
	}
	if !g.present || g.textFull() {
		return 0
	}
	return max(0, g.allocatable-g.creating-c.reserved())
}

// placedFree is the largest volume in extents where the group is placed.
func (c *classGroup) placedFree(growth bool) int64 {
	g := c.group
	if !g.present || !g.hasText(c.layout().Text([]string{strings.Repeat("x", typicalTags)}, max(1, g.fragments))) {
		return 0
	}
	largest, _ := c.capacity(growth)
	return largest
}

// reserved is how many extents of the group the class leaves free.
func (c *classGroup) reserved() int64 {
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

// hasText reports whether the group's metadata has space for so many bytes more,
// beside what is reserved already.
func (g *freeSpace) hasText(bytes int64) bool {
	m := g.metadata
	m.Size += g.reservedText + bytes
	return m.Fits(nil, 0)
}

// hasThinText reports whether the group's metadata has space for one more thin volume,
// which is in one segment.
func (g *freeSpace) hasThinText() bool {
	return g.hasText(layout.VolumeText(nil, 1) + typicalTags)
}

// textFull reports whether the metadata has no space for a volume of all that is free.
func (g *freeSpace) textFull() bool {
	return !g.hasText(layout.VolumeText(nil, max(1, g.fragments)) + typicalTags)
}

// mayHaveMore reports whether the group may have one more volume, beside those that are
// being created.
func (g *Group) mayHaveMore() bool {
	return g.info.MostVolumes == 0 || int64(len(g.exists))+g.creations < g.info.MostVolumes
}

// errTooMany says that a group may not have more volumes, in words for what is refused.
func errTooMany(g *Group, what string) error {
	return apierror.NoSpace("%s: volume group %q has all of the %d logical volumes that it may have; vgchange --logicalvolume 0 %s lifts the limit",
		what, g.name, g.info.MostVolumes, g.name)
}

// hiddenSegments is more than the data and metadata of thin pools lie in.
const hiddenSegments = 64

// boundFragments keeps what is known of the group's free space near what LVM has
// without a scan: each removal may leave as many free segments more as the volume
// had, but there are never more of them than there are volumes' segments and ends of
// disks that separate them, and what LVM hides in pools.
func (m *model) boundFragments(g *Group) {
	n := g.foreign + int64(len(g.info.Devices)) + hiddenSegments
	for _, v := range m.volumes {
		if v.group == g && v.pool == nil {
			n += v.segments
		}
	}
	g.fragments = min(g.fragments, n)
}
