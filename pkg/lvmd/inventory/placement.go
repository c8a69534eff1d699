package inventory

import (
	"slices"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/quantity"
)

// A group is placed if any volume in it is striped or RAID, or could be. Then the position of free
// extents matters, not only their number: lvmd chooses the devices of every volume, reserves them
// at admission, and reads the free extents from the disks' metadata after each change. In other
// groups LVM chooses, and counting is enough.

// plan is an operation's reservation in a placed group.
type plan struct {
	shares []layout.Share
	// growth is true for expansions, false for creations.
	growth bool
}

func (p plan) extents() int64 {
	var n int64
	for _, s := range p.shares {
		n += s.Extents
	}
	return n
}

func (m *model) markPlaced(g *Group) {
	g.placed = false
	for _, c := range m.classes {
		in := c.in(g)
		g.placed = g.placed || in != nil && !in.layout().IsLinear()
	}
	for _, p := range g.pools {
		g.placed = g.placed || !p.data.Layout.IsLinear()
	}
	for _, v := range m.volumes {
		g.placed = g.placed || v.group == g && v.pool == nil && !v.layout.IsLinear()
	}
}

// replaceGroups runs markPlaced for all groups under a new configuration. The free extents of a
// newly placed group come from placements; otherwise it has none until it is scanned.
func (m *model) replaceGroups(placements map[string]ondisk.Placement) {
	for _, g := range m.groups {
		before := g.placed
		if m.markPlaced(g); !g.placed || before || !g.present {
			continue
		}
		if p, ok := placements[g.name]; ok && p.Seqno == g.metadata.Seqno {
			m.relocate(g, p)
		} else {
			g.free, g.stale = nil, true
		}
	}
}

func (m *model) relocate(g *Group, p ondisk.Placement) {
	if !g.placed || p.Free == nil {
		return
	}
	g.free = g.info.FreeIn(p)
	g.allocatable, g.fragments = 0, 0
	for _, f := range g.free {
		g.allocatable += f.Extents()
		g.fragments += int64(len(f.Runs))
	}
	for id, v := range m.volumes {
		if lies, ok := p.Volumes[id]; ok && v.group == g {
			v.on = lies.On
		}
	}
}

// left returns the free extents of each device of a placed group, net of reservations for creations
// and, with growth, for expansions. elsewhere counts further reserved extents, which may lie
// anywhere. It ignores the reservation of except, which may be nil.
func (g *freeSpace) left(growth bool, except *Volume) (free []layout.Free, elsewhere int64) {
	free, elsewhere = g.free, g.creating
	if growth {
		elsewhere += g.expanding
	}
	for v, p := range g.plans {
		if p.growth && !growth {
			continue
		}
		elsewhere -= p.extents()
		if v != except {
			free = layout.Without(free, p.shares)
		}
	}
	return free, max(0, elsewhere)
}

// capacity returns the sizes, in extents, of the class' largest possible volume in a placed group,
// and of all its possible volumes together.
func (c *classGroup) capacity(growth bool) (largest, available int64) {
	l := c.layout()
	free, elsewhere := c.group.left(growth, nil)
	counts, reserve := layout.Counts(free), c.reserved()
	if l.IsLinear() {
		reserve += elsewhere
	} else {
		// It may come from any device.
		for i := range counts {
			counts[i] = max(0, counts[i]-elsewhere)
		}
	}
	return l.Largest(counts, reserve), l.Available(counts, reserve)
}

// Disks returns the paths of the group's physical volumes that may get new extents.
func (g *Group) Disks() []string {
	m := g.m
	m.lock()
	defer m.unlock()
	var paths []string
	for _, d := range g.info.Devices {
		if d.Allocatable && !d.Missing {
			paths = append(paths, d.Path)
		}
	}
	return paths
}

// reportLayout adjusts the report for volumes that lie on several devices.
func (c *classGroup) reportLayout(r *lvmdv1.ClassGroup, l layout.Layout, add func(kind, format string, args ...any)) {
	g := c.group
	sizes := make([]int64, len(g.info.Devices))
	for i, d := range g.info.Devices {
		sizes[i] = d.Extents
	}
	r.TotalBytes = l.Available(sizes, 0) * g.info.ExtentSize
	if r.MaximumVolumeSizeBytes > 0 {
		_, available := c.capacity(false)
		r.AvailableBytes = available * g.info.ExtentSize
	}
	if len(sizes) < l.Devices() {
		add(conditions.VolumeGroupUnfit, "volume group %q has %d devices; a volume of type %s lies on %d", g.name, len(sizes), c.Type, l.Devices())
	}
}

// largestGrowth is in extents, for placed groups.
func (v *Volume) largestGrowth(reserve int64) int64 {
	free, elsewhere := v.group.left(true, nil)
	return v.layout.LargestGrowth(free, v.group.info.PathsOf(v.on), reserve+elsewhere)
}

// planCreation reserves devices for a new volume, replacing an earlier choice. It returns nil if
// LVM chooses.
func (v *Volume) planCreation() []layout.Share {
	g := v.group
	if !g.placed || v.pool != nil {
		return nil
	}
	free, _ := g.left(true, v)
	g.plans[v] = plan{shares: v.layout.Place(free, v.extents)}
	return g.plans[v].shares
}

func (v *Volume) planGrowth(more int64) []layout.Share {
	g := v.group
	if !g.placed || v.pool != nil {
		return nil
	}
	free, _ := g.left(true, v)
	g.plans[v] = plan{shares: v.layout.PlaceGrowth(free, g.info.PathsOf(v.on), more), growth: true}
	return g.plans[v].shares
}

// growthOf returns by how many extents a pool's component can grow, given the group's free extents
// net of reservations.
func (g *Group) growthOf(lies ondisk.Volume, free, reserve int64) int64 {
	if lies.Layout.IsLinear() {
		return free
	}
	left, elsewhere := g.left(true, nil)
	return lies.Layout.LargestGrowth(left, g.info.PathsOf(lies.On), reserve+elsewhere)
}

// placeGrowth chooses unreserved extents for the growth of a pool's component. It returns nil if
// LVM chooses, and fails if the devices lack the space.
func (g *Group) placeGrowth(name string, lies ondisk.Volume, more int64) ([]layout.Share, error) {
	if lies.Layout.IsLinear() {
		return nil, nil
	}
	left, _ := g.left(true, nil)
	return checkPlace(g, name, lies.Layout, lies.Layout.PlaceGrowth(left, g.info.PathsOf(lies.On), more), more)
}

// checkPlace fails if no devices were found for a layout that is not linear: another program, or
// the loss of a disk, took the free space. LVM must not choose then: it may put two images on one
// device.
func checkPlace(g *Group, name string, l layout.Layout, on []layout.Share, extents int64) ([]layout.Share, error) {
	if on == nil && !l.IsLinear() {
		return nil, apierror.NoSpace("%s: the devices of volume group %q have no place for %s of type %s any more",
			name, g.name, quantity.Bytes(extents*g.info.ExtentSize), l)
	}
	return on, nil
}

// endsOf returns where the last segment ends on each device, by path, in extents.
func (g *groupScan) endsOf(segments []lvm.Segment) map[string]int64 {
	ends := map[string]int64{}
	if len(segments) == 0 {
		return ends
	}
	for _, s := range g.sharesOf(segments[len(segments)-1:]) {
		for _, r := range s.Runs {
			ends[s.Device] = max(ends[s.Device], r.Start+r.Length)
		}
	}
	return ends
}

func (g *groupScan) sharesOf(segments []lvm.Segment) []layout.Share {
	var shares []layout.Share
	for _, p := range segments {
		for _, a := range p.Areas {
			i := slices.IndexFunc(g.info.Devices, func(d lvm.PhysicalVolume) bool { return d.UUID == a.Device })
			if i < 0 {
				continue
			}
			d := &g.info.Devices[i]
			shares = layout.Join(shares, layout.Share{
				Device: d.Path, Extents: a.Length / g.info.ExtentSize,
				Runs: []layout.Run{{Start: (a.Start - d.DataOffset) / g.info.ExtentSize, Length: a.Length / g.info.ExtentSize}},
			})
		}
	}
	return shares
}

func (g *groupScan) areasOf(shares []layout.Share) []lvm.Area {
	var areas []lvm.Area
	for _, s := range shares {
		i := slices.IndexFunc(g.info.Devices, func(d lvm.PhysicalVolume) bool { return d.Path == s.Device })
		if i < 0 {
			continue
		}
		d := &g.info.Devices[i]
		for _, r := range s.Runs {
			areas = append(areas, lvm.Area{
				Device: d.UUID, Start: d.DataOffset + r.Start*g.info.ExtentSize, Length: r.Length * g.info.ExtentSize,
			})
		}
	}
	return areas
}
