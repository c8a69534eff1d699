package thinpool

import (
	"fmt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Pool is the input to the decision whether to extend a pool.
type Pool struct {
	// Total is in extents of ExtentSize bytes.
	Group             string
	Total, ExtentSize int64
	// Free counts the group's free extents, net of reservations and the class' reserve.
	Free       int64
	AutoExtend config.AutoExtend
	// DataDue and MetadataDue are true if that part has to grow.
	DataDue, MetadataDue bool
	// Extents is the size of the data, and Metadata that of the metadata in bytes.
	Extents, Metadata          int64
	DataLayout, MetadataLayout layout.Layout
	// DataGrowth and MetadataGrowth are how far that part can grow on its devices, in extents. They
	// matter unless the part is linear, which only Free limits.
	DataGrowth, MetadataGrowth int64
}

// Growth is the planned size of a pool.
type Growth struct {
	// Zero means unchanged.
	Extents, Metadata int64
	// Stuck is why a part that has to grow cannot, or empty.
	Stuck string
}

// Grow grows the data by the configured step and doubles the metadata, as far as space permits; the
// metadata's spare for repairs grows along. The metadata may grow even if the data cannot.
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
	// The spare, which is linear, grows by as much.
	units := min(more/size, growth) / l.Unit()
	units = min(units, p.Free/(l.RawGrowth(l.Unit())+l.Unit()))
	if units <= 0 {
		return 0, fmt.Sprintf("volume group %q has no free space left for more metadata beside what is reserved", p.Group)
	}
	return p.Metadata + units*l.Unit()*size, ""
}
