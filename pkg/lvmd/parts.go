package lvmd

import (
	"fmt"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// in returns the class' part in a group, or nil. The parts never change.
func (c *class) in(g *group) *part {
	for _, p := range c.parts {
		if p.group == g {
			return p
		}
	}
	return nil
}

// fit is how a volume would lie in a group.
type fit struct {
	extents, segments int64
	// text is what it may take of the group's metadata.
	text int64
}

// choose picks the group for a new volume: of those that can take it, the one
// with the most room. When none can, the error is that of the group which came
// closest: no room rather than out of order. The caller holds the model's lock.
func (c *class) choose(ident identity) (*part, fit, error) {
	var best *part
	var bestFit fit
	var refusal error
	refusedFor := -1
	for _, p := range c.parts {
		f, stage, err := p.place(ident)
		if err != nil {
			if stage > refusedFor {
				refusal, refusedFor = err, stage
			}
			continue
		}
		if best == nil || p.freeBytes() > best.freeBytes() {
			best, bestFit = p, f
		}
	}
	if best == nil {
		return nil, fit{}, refusal
	}
	return best, bestFit, nil
}

// freeBytes is the part's room in bytes.
func (c *part) freeBytes() int64 { return c.room() * c.group.info.ExtentSize }

// place decides whether a volume can be made in the group now. stage tells
// how many of the conditions held when it cannot.
func (c *part) place(ident identity) (f fit, stage int, err error) {
	g := c.group
	switch {
	case !g.present:
		return f, 0, deviceMissing("device class %q: volume group %q is missing", c.Name, g.name)
	case g.info.MissingDevices > 0:
		return f, 1, deviceMissing("device class %q: %d devices of volume group %q are missing", c.Name, g.info.MissingDevices, g.name)
	case !g.wedged.IsZero():
		return f, 2, notAnswering(g.name, g.wedged)
	}
	l := c.layout()
	if f.extents, err = ident.extentsFor(g.info.ExtentSize * l.Unit()); err != nil {
		return f, 3, err
	}
	f.extents *= l.Unit()
	pieces := max(1, min(f.extents, g.fragments))
	if c.pool != nil {
		if why := c.pool.refusal(); why != "" {
			return f, 3, noSpace("device class %q: %s", c.Name, why)
		}
		pieces = 1
	}
	if err := c.unfit(); err != nil {
		return f, 1, noSpace("device class %q: %v", c.Name, err)
	}
	if !g.mayHaveMore() {
		return f, 3, g.errTooMany(fmt.Sprintf("device class %q", c.Name))
	}
	f.segments, f.text = l.Segments(pieces), l.Text(ident.tags(), pieces)
	if !g.hasText(f.text) {
		return f, 4, noSpace("device class %q: the metadata of volume group %q has no room for more volumes: it takes %d of at most %d bytes",
			c.Name, g.name, g.metadata.Size, g.metadata.Limit)
	}
	if room := c.room(); f.extents > room {
		return f, 5, noSpace("device class %q: %d bytes asked for, %d available%s",
			c.Name, f.extents*g.info.ExtentSize, c.largest(), c.several())
	}
	return f, 0, nil
}

// largest is the room of the class' roomiest group, in bytes.
func (c *class) largest() int64 {
	var n int64
	for _, p := range c.parts {
		n = max(n, p.freeBytes())
	}
	return n
}

// several reminds readers of messages that a volume lies in one group.
func (c *class) several() string {
	if len(c.parts) == 1 {
		return ""
	}
	return " in the roomiest of its volume groups"
}

// report is what the service says of a class; nil when it is not offered.
// The caller holds the lock.
func (m *model) report(c *class) *lvmdv1.DeviceClass {
	r := &lvmdv1.DeviceClass{
		Name: c.Name, Default: c.Default, Type: string(c.Type), Medium: string(c.Medium),
	}
	if m.refused != "" {
		r.Conditions = append(r.Conditions, condition("ConfigurationRefused",
			"what the configuration file says now is not in force: %s", m.refused))
	}
	var groups, uuids []string
	for _, p := range c.parts {
		if !p.group.present && c.Optional && p.group.refused == "" {
			continue
		}
		part := p.report(r, m.config.Devices.IsEmpty())
		groups = append(groups, part.VgName)
		if part.VgUuid != "" {
			uuids = append(uuids, part.VgUuid)
		}
		r.TotalBytes += part.TotalBytes
		r.AvailableBytes += part.AvailableBytes
		r.MaximumVolumeSizeBytes = max(r.MaximumVolumeSizeBytes, part.MaximumVolumeSizeBytes)
		r.Groups = append(r.Groups, part)
	}
	if len(r.Groups) == 0 {
		return nil
	}
	r.VgName, r.VgUuid = strings.Join(groups, ","), strings.Join(uuids, ",")
	return r
}

// report is what a group adds to its class' report: the numbers are returned,
// conditions and sizes that every group must be fit for go into the class. everywhere is
// true when all block devices are looked at for the group.
func (c *part) report(class *lvmdv1.DeviceClass, everywhere bool) *lvmdv1.ClassGroup {
	g := c.group
	r := &lvmdv1.ClassGroup{VgName: g.name}
	add := func(kind, format string, args ...any) {
		class.Conditions = append(class.Conditions, condition(kind, format, args...))
	}
	if !g.present && g.refused != "" {
		add("VolumeGroupReplaced", "%s", g.refused)
		return r
	}
	if !g.present {
		where := "on this node"
		if !everywhere {
			where = "on those block devices of this node that the configuration's key devices allows"
		}
		add("VolumeGroupMissing", "volume group %q does not exist %s%s", g.name, where, g.provided.absence())
		return r
	}
	r.VgUuid, r.MostVolumes = g.info.UUID, g.metadata.Most()
	r.TotalBytes = g.info.Extents * g.info.ExtentSize
	if c.pool != nil {
		r.TotalBytes = c.pool.limit() * g.info.ExtentSize
		class.Conditions = append(class.Conditions, c.pool.conditions()...)
	}
	unit := g.info.ExtentSize * c.layout().Unit()
	class.AllocationUnitBytes = max(class.AllocationUnitBytes, unit)
	class.MinimumVolumeSizeBytes = max(class.MinimumVolumeSizeBytes, unit)
	if c.pool == nil {
		one, two := c.layout().Raw(c.layout().Unit()), c.layout().Raw(2*c.layout().Unit())
		class.UnitCostBytes = max(class.UnitCostBytes, (two-one)*g.info.ExtentSize)
		class.VolumeCostBytes = max(class.VolumeCostBytes, (2*one-two)*g.info.ExtentSize)
	}
	r.AvailableBytes = c.reportedRoom() * g.info.ExtentSize
	// A linear volume can lie on any extents: fragments do not matter.
	r.MaximumVolumeSizeBytes = r.AvailableBytes
	if l := c.layout(); !l.IsLinear() {
		c.reportLayout(r, l, add)
	}
	if n := g.info.MissingDevices; n > 0 {
		add("MissingDevice", "%d of %d devices of volume group %q are missing; it cannot be changed until they are back (vgextend --restoremissing) or given up (vgreduce --removemissing)",
			n, len(g.info.Devices), g.name)
	}
	if !g.failing.IsZero() {
		add("DiskErrors", "a disk of volume group %q failed what was asked of it a moment ago", g.name)
	}
	if g.info.Exported || g.info.ReadOnly {
		add("ReadOnly", "volume group %q is exported or read-only", g.name)
	}
	if c.pool == nil && g.textFull() || c.pool != nil && !g.hasThinText() {
		add("MetadataFull", "the metadata of volume group %q takes %d of at most %d bytes: there is no room for more volumes",
			g.name, g.metadata.Size, g.metadata.Limit)
	}
	if !g.mayHaveMore() {
		add("TooManyVolumes", "volume group %q has all of the %d logical volumes that it may have (vgchange --logicalvolume)", g.name, g.info.MostVolumes)
	}
	if err := c.unfit(); err != nil {
		add("NotPersistentMemory", "%v", err)
	}
	if !g.wedged.IsZero() {
		add("NotResponding", "LVM commands time out for volume group %q", g.name)
	}
	return r
}
