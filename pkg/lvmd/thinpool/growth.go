package thinpool

import (
	"fmt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Pool is what the decision to extend a pool depends on.
type Pool struct {
	// Group is the volume group's name, Total its extents and ExtentSize their size in bytes.
	Group             string
	Total, ExtentSize int64
	// Free is how many extents are free in the group beside what is reserved for operations
	// and for the class.
	Free       int64
	AutoExtend config.AutoExtend
	// DataDue and MetadataDue are true when that part is to grow.
	DataDue, MetadataDue bool
	// Extents is the size of the data, and Metadata that of the metadata in bytes.
	Extents, Metadata          int64
	DataLayout, MetadataLayout layout.Layout
	// DataGrowth and MetadataGrowth are by how many extents that part can grow on its
	// devices. They count only where it is not linear: Free does otherwise.
	DataGrowth, MetadataGrowth int64
}

// Growth is to what a pool is to be extended.
type Growth struct {
	// Extents is the new size of the data, and Metadata that of the metadata in bytes; zero
	// means that it stays as it is.
	Extents, Metadata int64
	// Stuck says why a part that is to grow cannot, or is empty.
	Stuck string
}

// Grow decides to what a pool is extended: its data by a step of its configuration, its metadata
// to twice its size, or what there is space for, with the spare that LVM keeps for repairs. What keeps the data from growing
// does not keep the metadata from it.
func (p Pool) Grow() Growth {
	var g Growth
	if p.DataDue {
		g.Extents, g.Stuck = p.growData()
		if g.Extents > 0 {
			p.Free -= p.DataLayout.RawGrowth(g.Extents - p.Extents)
		}
	}
	if p.MetadataDue {
		var stuck string
		if g.Metadata, stuck = p.growMetadata(); stuck != "" {
			g.Stuck = stuck
		}
	}
	return g
}

func (p Pool) growData() (extents int64, stuck string) {
	size, l := p.ExtentSize, p.DataLayout
	growth := p.Free
	if !l.IsLinear() {
		growth = p.DataGrowth
	}
	step := l.RoundUp(max(1, (p.AutoExtend.Step.Of(p.Extents*size)+size-1)/size))
	most := p.Extents + growth
	if limit := p.AutoExtend.Limit; !limit.IsZero() {
		most = min(most, p.Extents+max(0, limit.Of(p.Total*size)/size-p.Extents)/l.Unit()*l.Unit())
	}
	switch extents = min(p.Extents+step, most); {
	case extents > p.Extents:
		return extents, ""
	case growth == 0 && !l.IsLinear() && p.Free > 0:
		return 0, fmt.Sprintf("the devices that it can grow on have no free space left, of volume group %q", p.Group)
	case growth == 0:
		return 0, fmt.Sprintf("volume group %q has no free space left beside what is reserved", p.Group)
	}
	return 0, "its limit is reached (thin.autoExtend.limit)"
}

func (p Pool) growMetadata() (bytes int64, stuck string) {
	size, l := p.ExtentSize, p.MetadataLayout
	growth := p.Free
	if !l.IsLinear() {
		growth = p.MetadataGrowth
	}
	more := min(p.Metadata, maxMetadata/size*size-p.Metadata)
	if more <= 0 {
		return 0, "its metadata is as large as can be"
	}
	// The spare grows by as much, and is linear.
	units := min(more/size, growth) / l.Unit()
	units = min(units, p.Free/(l.RawGrowth(l.Unit())+l.Unit()))
	if units <= 0 {
		return 0, fmt.Sprintf("volume group %q has no free space left for more metadata beside what is reserved", p.Group)
	}
	return p.Metadata + units*l.Unit()*size, ""
}
