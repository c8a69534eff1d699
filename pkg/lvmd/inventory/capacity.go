package inventory

import (
	"strings"

	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

func (c *classGroup) freeBytes() int64 { return c.free() * c.group.info.ExtentSize }

// free returns the extents available to a new volume, net of all operations under way.
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

// reportedFree is free for watchers: an expansion counts only once the volume's new size is
// reported, too. It is zero if the group can grow volumes but create none.
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

func (c *classGroup) placedFree(growth bool) int64 {
	g := c.group
	if !g.present || !g.hasText(c.layout().Text([]string{strings.Repeat("x", typicalTags)}, max(1, g.fragments))) {
		return 0
	}
	largest, _ := c.capacity(growth)
	return largest
}

// reserved returns the extents that the class leaves free.
func (c *classGroup) reserved() int64 {
	g := c.group
	// Round up, without a sum that could overflow.
	bytes := c.Reserve.Of(g.info.Extents * g.info.ExtentSize)
	reserve := bytes / g.info.ExtentSize
	if bytes%g.info.ExtentSize != 0 {
		reserve++
	}
	return reserve
}

// typicalTags bounds the bytes that the tags of most volumes take in the metadata.
const typicalTags = 500

// hasText reports whether the metadata has space for bytes more, net of reservations.
func (g *freeSpace) hasText(bytes int64) bool {
	m := g.metadata
	m.Size += g.reservedText + bytes
	return m.Fits(nil, 0)
}

// hasThinText is hasText for a thin volume, which has one segment.
func (g *freeSpace) hasThinText() bool {
	return g.hasText(layout.VolumeText(nil, 1) + typicalTags)
}

// textFull reports whether the metadata has no space for a volume of all free extents.
func (g *freeSpace) textFull() bool {
	return !g.hasText(layout.VolumeText(nil, max(1, g.fragments)) + typicalTags)
}

func (g *Group) mayHaveMore() bool {
	return g.info.MostVolumes == 0 || int64(len(g.exists))+g.creations < g.info.MostVolumes
}

func errTooMany(g *Group, what string) error {
	return apierror.NoSpace("%s: volume group %q has all of the %d logical volumes that it may have; vgchange --logicalvolume 0 %s lifts the limit",
		what, g.name, g.info.MostVolumes, g.name)
}

// hiddenSegments exceeds the segments of thin pools' data and metadata.
const hiddenSegments = 64

// boundFragments keeps g.fragments near LVM's own count without a scan. Each removal adds the
// volume's segments, but free segments never outnumber what separates them: segments of volumes,
// ends of disks, and what LVM hides in pools.
func (m *model) boundFragments(g *Group) {
	n := g.foreign + int64(len(g.info.Devices)) + hiddenSegments
	for _, v := range m.volumes {
		if v.group == g && v.pool == nil {
			n += v.segments
		}
	}
	g.fragments = min(g.fragments, n)
}
