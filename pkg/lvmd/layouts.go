package lvmd

import (
	"strconv"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// A group is placed when a volume of it is striped or RAID, or could be. Where
// the extents of a placed group are free then matters, not only how many: lvmd
// chooses the devices of every volume in it, promises them when the volume is
// admitted, and reads from the disks' metadata what is free after each change.
// In other groups LVM chooses, and counting is enough.

// plan is what a placed group promises of its devices to an operation.
type plan struct {
	shares []lvm.Share
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

// layout is how the class' volumes lie. Thin volumes lie in their pool: their
// layout is linear.
func (c *class) layout() lvm.Layout {
	if c.Type == config.Thin {
		return lvm.Layout{Type: lvm.Linear}
	}
	return lvm.Layout{Type: lvm.LayoutType(c.Type), Stripes: c.Stripes, StripeSize: c.StripeSize, Mirrors: c.Mirrors}
}

// markPlaced decides about a group. The caller holds the model's lock.
func (m *model) markPlaced(g *group) {
	g.placed = false
	for _, c := range m.classes {
		g.placed = g.placed || c.in(g) != nil && !c.layout().IsLinear()
	}
	for _, v := range m.volumes {
		g.placed = g.placed || v.group == g && v.pool == nil && !v.layout.IsLinear()
	}
}

// replaceGroups decides about all groups anew, under another configuration. Of
// one that was not placed before, what is free where was not kept up to date:
// it is read now, or the group has no room until it is scanned. The caller
// holds the model's lock.
func (s *Service) replaceGroups() {
	for _, g := range s.model.groups {
		before := g.placed
		if s.model.markPlaced(g); !g.placed || before || !g.present {
			continue
		}
		if p, err := s.lvm.Placement(g.name); err == nil && p.Seqno == g.metadata.Seqno {
			s.model.relocate(g, p)
		} else {
			g.free, g.stale = nil, true
		}
	}
}

// whereabouts reads where everything in a placed group lies. ok is false when
// that is not known for the given state of the metadata: then a scan is needed.
func (s *Service) whereabouts(g *group, now lvm.Metadata) (p lvm.Placement, ok bool) {
	s.model.mu.Lock()
	placed := g.placed
	s.model.mu.Unlock()
	if !placed {
		return p, true
	}
	p, err := s.lvm.Placement(g.name)
	if err != nil {
		s.log.Warn("where volumes lie cannot be read from the disks; scanning", "group", g.name, "error", err)
	}
	return p, err == nil && p.Seqno == now.Seqno
}

// relocate takes over where everything lies after a change. The caller holds
// the model's lock.
func (m *model) relocate(g *group, p lvm.Placement) {
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
		if lie, ok := p.Volumes[id]; ok && v.group == g {
			v.on = lie.On
		}
	}
}

// left is what is free on each device of a placed group beside what is
// promised to creations and, if growth is wanted, to expansions; and how many
// more extents are promised of which nobody knows where they will be. except,
// which may be nil, is an operation that does not count.
func (g *group) left(growth bool, except *volume) (free []lvm.Free, elsewhere int64) {
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
			free = lvm.Without(free, p.shares)
		}
	}
	return free, max(0, elsewhere)
}

// capacity is the largest volume that the class can have in a placed group,
// and the most that its volumes can have in all, in extents. The caller holds
// the model's lock.
func (c *part) capacity(growth bool) (largest, available int64) {
	l := c.layout()
	free, elsewhere := c.group.left(growth, nil)
	counts, reserve := lvm.Counts(free), c.reserved()
	if l.IsLinear() {
		reserve += elsewhere
	} else {
		// It may be taken of any device.
		for i := range counts {
			counts[i] = max(0, counts[i]-elsewhere)
		}
	}
	return l.Largest(counts, reserve), l.Available(counts, reserve)
}

// reportLayout adds what is different where volumes lie on several devices at
// once. The caller holds the model's lock.
func (c *part) reportLayout(r *lvmdv1.ClassGroup, l lvm.Layout, add func(kind, format string, args ...any)) {
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
		add("TooFewDevices", "volume group %q has %d devices; a volume of type %s lies on %d", g.name, len(sizes), c.Type, l.Devices())
	}
}

// growth is by how many extents a volume can grow in a placed group. The
// caller holds the model's lock.
func (v *volume) growth(reserve int64) int64 {
	free, elsewhere := v.group.left(true, nil)
	return v.layout.LargestGrowth(free, v.group.info.PathsOf(v.on), reserve+elsewhere)
}

// planCreation promises devices to a new volume, or chooses them again. What
// it returns is empty where LVM is to choose. The caller holds the model's lock.
func (v *volume) planCreation() []lvm.Share {
	g := v.group
	if !g.placed || v.pool != nil {
		return nil
	}
	free, _ := g.left(true, v)
	g.plans[v] = plan{shares: v.layout.Place(free, v.extents)}
	return g.plans[v].shares
}

// planGrowth is planCreation for an expansion by so many extents.
func (v *volume) planGrowth(more int64) []lvm.Share {
	g := v.group
	if !g.placed || v.pool != nil {
		return nil
	}
	free, _ := g.left(true, v)
	g.plans[v] = plan{shares: v.layout.PlaceGrowth(free, g.info.PathsOf(v.on), more), growth: true}
	return g.plans[v].shares
}

// createOptions is the one command that makes a volume, with what is free now.
// The caller has the group's turn.
func (s *Service) createOptions(v *volume) lvm.CreateOptions {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	o := lvm.CreateOptions{
		Group: v.group.name, Volume: v.rec.ID, Layout: v.layout, Extents: v.extents,
		On: v.planCreation(), Tags: v.tags(),
	}
	if c := s.model.class(v.rec.Ident.Class); c != nil {
		o.Options = c.LvcreateOptions
	}
	return o
}

// grows is how many of the group's extents the volume takes by growing.
func (v *volume) grows(more int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.RawGrowth(more)
}

// layoutProblem says why a class' volumes cannot be made in a group, whatever
// is free there: the key that is to blame, its value and why.
func layoutProblem(c *config.DeviceClass, g *lvm.Group) error {
	switch {
	case c.Type.IsRAID() && g.ExtentSize < lvm.MinRAIDExtent:
		return c.Problem("type", string(c.Type), "volume group "+g.Name+" has extents of less than 512 KiB, in which the bookkeeping of RAID does not fit (vgcreate --physicalextentsize)")
	case c.StripeSize > g.ExtentSize:
		return c.Problem("stripeSize", strconv.FormatInt(c.StripeSize, 10), "more than an extent of volume group "+g.Name+", which has "+strconv.FormatInt(g.ExtentSize, 10)+" bytes")
	}
	return nil
}
