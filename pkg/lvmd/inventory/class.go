package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/quantity"
)

// class is a device class with its last report.
type class struct {
	config.DeviceClass
	// groups are in the configuration's order.
	groups []*classGroup
	// wiping and copying limit the rates; nil means no limit.
	wiping  *rate.Limiter
	copying *rate.Limiter
	// reported is nil while the class is not offered.
	reported *lvmdv1.DeviceClass
	// changed is the generation in which reported changed.
	changed uint64
}

type classGroup struct {
	*class
	group *Group
	// pool is nil unless the class is thin.
	pool *Pool
}

// wipeBurst is in bytes.
const wipeBurst = 64 << 20

func newClass(dc config.DeviceClass, groups map[string]*Group) *class {
	c := &class{DeviceClass: dc, wiping: limiter(dc.WipeRate), copying: limiter(dc.CopyRate)}
	for _, name := range dc.VolumeGroups {
		c.groups = append(c.groups, &classGroup{class: c, group: groups[name]})
	}
	return c
}

// limiter allows bytesPerSecond in bursts of a tenth of a second; zero means no limit.
func limiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond == 0 {
		return nil
	}
	burst := min(wipeBurst, bytesPerSecond/10)
	return rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst-burst%4096))
}

// wipes reports whether deleted volumes of the class read as zeroes before their space is free.
func (c *class) wipes() bool { return c.Wipe == config.WipeAuto || c.Wipe == config.WipeZero }

// layout is linear for thin volumes, wherever their pool lies.
func (c *classGroup) layout() layout.Layout {
	switch {
	case c.Type == config.Thin:
		return layout.Layout{Type: layout.Linear}
	case c.Stripes == config.AllDevices:
		return c.group.info.Striped(c.StripeSize)
	}
	return layout.Layout{Type: layout.Type(c.Type), Stripes: c.Stripes, StripeSize: c.StripeSize, Mirrors: c.Mirrors}
}

func (c *class) in(g *Group) *classGroup {
	for _, p := range c.groups {
		if p.group == g {
			return p
		}
	}
	return nil
}

// fit is how a volume would lie in a group.
type fit struct {
	extents, segments int64
	// text bounds its bytes in the group's metadata.
	text int64
}

// choose picks the group with the most free space of those that fit. If none does, the error is of
// the group that came closest: lack of space rather than missing disks.
func (c *class) choose(ident *spec.Identity) (*classGroup, fit, error) {
	var best *classGroup
	var bestFit fit
	var refusal error
	refusedFor := -1
	for _, p := range c.groups {
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

// place checks whether the group can take a volume now. If not, stage is higher the closer it came.
func (c *classGroup) place(ident *spec.Identity) (f fit, stage int, err error) {
	g := c.group
	switch {
	case !g.present && g.responding() != nil:
		return f, 0, g.responding()
	case !g.present:
		return f, 0, apierror.DeviceMissing("device class %q: volume group %q is missing", c.Name, g.name)
	case g.info.MissingDevices > 0:
		return f, 1, apierror.DeviceMissing("device class %q: %d devices of volume group %q are missing", c.Name, g.info.MissingDevices, g.name)
	case g.responding() != nil:
		return f, 2, g.responding()
	}
	l := c.layout()
	if f.extents, err = ident.Extents(g.info.ExtentSize * l.Unit()); err != nil {
		return f, 3, err
	}
	f.extents *= l.Unit()
	segments := max(1, min(f.extents, g.fragments))
	if c.pool != nil {
		if why := c.pool.refusal(); why != "" {
			return f, 3, apierror.NoSpace("device class %q: %s", c.Name, why)
		}
		segments = 1
	}
	if problem := c.unfit(); problem != nil {
		return f, 1, apierror.NoSpace("device class %q: %v", c.Name, problem)
	}
	if !g.mayHaveMore() {
		return f, 3, errTooMany(g, fmt.Sprintf("device class %q", c.Name))
	}
	// TagMaking, the alternative to TagCopying, is shorter.
	f.segments, f.text = l.Segments(segments), l.Text(append(ident.Tags(), spec.TagCopying, spec.TagProvisional), segments)
	if !g.hasText(f.text) {
		return f, 4, apierror.NoSpace("device class %q: the metadata of volume group %q has no space for more volumes: it takes %s of at most %s",
			c.Name, g.name, quantity.Bytes(g.metadata.Size), quantity.Bytes(g.metadata.Limit))
	}
	if free := c.free(); f.extents > free {
		return f, 5, apierror.NoSpace("device class %q: %s asked for, %s available%s",
			c.Name, quantity.Bytes(f.extents*g.info.ExtentSize), quantity.Bytes(c.largest()), c.several())
	}
	return f, 0, nil
}

// checkInlineShare fails if a new inline volume of extents would exceed the class' share. Deleted
// volumes that are not wiped yet count.
func (c *classGroup) checkInlineShare(extents int64) error {
	asked := extents * c.group.info.ExtentSize
	var taken int64
	for _, v := range c.group.m.volumes {
		if v.rec.Ident.Owner.PodUID != "" && v.rec.Ident.Class == c.Name {
			taken += v.bytes()
		}
	}
	share := config.MulDiv(c.reported.GetTotalBytes(), int64(c.InlinePercent), 100)
	if asked <= share-taken {
		return nil
	}
	return apierror.NoSpace("device class %q: %s asked for; inline volumes may take %s on this node (inlinePercent: %d), and %s are taken; delete Pods with inline volumes, or raise inlinePercent of device class %q",
		c.Name, quantity.Bytes(asked), quantity.Bytes(share), c.InlinePercent, quantity.Bytes(taken), c.Name)
}

func (c *class) largest() int64 {
	var n int64
	for _, p := range c.groups {
		n = max(n, p.freeBytes())
	}
	return n
}

// several qualifies a free space in messages, since a volume lies in one group.
func (c *class) several() string {
	if len(c.groups) == 1 {
		return ""
	}
	return " in its volume group with the most free space"
}

func (c *classGroup) unfit() config.Problems {
	if !c.group.present {
		return nil
	}
	return Unfit(&c.DeviceClass, &c.group.info)
}

// Unfit returns the configuration key that rules out new volumes of a class in a group, whatever is
// free. Existing volumes keep their layout and are served.
func Unfit(c *config.DeviceClass, g *lvm.Group) config.Problems {
	switch {
	case c.Type.IsRAID() && g.ExtentSize < layout.MinRAIDExtent:
		return c.Problem("type", string(c.Type), "volume group "+g.Name+
			" has extents of less than 512 KiB, in which the bookkeeping of RAID does not fit; make them larger (vgchange --physicalextentsize 4m "+g.Name+"), or use type: linear or striped")
	case c.StripeSize > g.ExtentSize:
		return c.Problem("stripeSize", strconv.FormatInt(c.StripeSize, 10), fmt.Sprintf(
			"more than an extent of volume group %s, which has %s; use at most that, or make the extents larger (vgchange --physicalextentsize)", g.Name, quantity.Bytes(g.ExtentSize)))
	case c.Medium == config.PMEM:
		if err := pmemProblem(g); err != nil {
			return c.Problem("medium", string(config.PMEM), err.Error())
		}
	}
	return nil
}

func pmemProblem(g *lvm.Group) error {
	if g.ExtentSize%layout.PMEMAlignment != 0 {
		return fmt.Errorf("volume group %q has extents of %s; for pmem they must be a multiple of 2 MiB (vgchange --physicalextentsize 4m %s)",
			g.Name, quantity.Bytes(g.ExtentSize), g.Name)
	}
	for _, d := range g.Devices {
		if !d.Missing && !d.DAX {
			return fmt.Errorf("%s of volume group %q cannot be mapped directly into memory (its queue/dax is not 1); use medium: disk", d.Path, g.Name)
		}
		if !d.Missing && d.DataOffset%layout.PMEMAlignment != 0 {
			return fmt.Errorf("on %s of volume group %q the data begins at byte %d; for pmem it must be a multiple of 2 MiB, as in a group that docs/how-to/persistent-memory.md makes",
				d.Path, g.Name, d.DataOffset)
		}
	}
	return nil
}

// report returns nil while the class is not offered.
func (m *model) report(c *class) *lvmdv1.DeviceClass {
	r := &lvmdv1.DeviceClass{
		Name: c.Name, Default: c.Default, Type: string(c.Type), Medium: string(c.Medium),
	}
	if m.refused != "" {
		r.Conditions = append(r.Conditions, condition(conditions.ConfigurationRefused,
			"what the configuration file says now is not in force: %s", m.refused))
	}
	var groups, uuids []string
	for _, p := range c.groups {
		if !p.group.present && c.Optional && p.group.refused == (Refusal{}) && p.group.unresponsive.IsZero() {
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

// report returns the group's numbers, and adds conditions and sizes that all groups must satisfy to
// class. everywhere means that the configuration's key devices restricts nothing.
func (c *classGroup) report(class *lvmdv1.DeviceClass, everywhere bool) *lvmdv1.ClassGroup {
	g := c.group
	r := &lvmdv1.ClassGroup{VgName: g.name}
	add := func(kind, format string, args ...any) {
		class.Conditions = append(class.Conditions, condition(kind, format, args...))
	}
	if len(g.imitations) > 0 {
		add(conditions.VolumeGroupImitated, "what is written in a volume shows the UUID of volume group %q, on %s; lvmd looks at no such device", g.name, examples(g.imitations))
	}
	if !g.present && g.refused != (Refusal{}) {
		add(g.refused.Type, "%s", g.refused.Message)
		return r
	}
	if !g.present && !g.unresponsive.IsZero() {
		add(conditions.NotResponding, "LVM does not answer for volume group %q, or its commands fail, since lvmd started; its log says why", g.name)
		return r
	}
	if !g.present {
		where := "on this node"
		if !everywhere {
			where = "on those block devices of this node that the configuration's key devices allows"
		}
		add(conditions.VolumeGroupMissing, "volume group %q does not exist %s%s", g.name, where, g.absence)
		return r
	}
	if g.replaced != "" {
		add(conditions.VolumeGroupChanged, "%s", g.replaced)
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
	r.AvailableBytes = c.reportedFree() * g.info.ExtentSize
	// Fragments do not matter: a linear volume can lie on any extents.
	r.MaximumVolumeSizeBytes = r.AvailableBytes
	if l := c.layout(); !l.IsLinear() {
		c.reportLayout(r, l, add)
	}
	if n := g.info.MissingDevices; n > 0 {
		add(conditions.MissingDevice, "%d of %d devices of volume group %q are missing (pvs -o+pv_missing); it cannot be changed until they are back (vgextend --restoremissing) or, if they never come back, given up with what they hold (vgreduce --removemissing)",
			n, len(g.info.Devices), g.name)
	}
	if !g.failing.IsZero() {
		add(conditions.DiskErrors, "a disk of volume group %q failed what was asked of it a moment ago", g.name)
	}
	if g.info.Exported || g.info.ReadOnly {
		add(conditions.ReadOnly, "volume group %q is exported or read-only", g.name)
	}
	if len(g.leftAlone) > 0 {
		add(conditions.VolumesLeftAlone, "%d volumes of volume group %q have tags of Carve and are left alone: %s", len(g.leftAlone), g.name, g.examplesLeftAlone())
	}
	if len(g.waiting) > 0 {
		add(conditions.DeletionWaits, "%d deleted volumes of volume group %q are not removed: %s", len(g.waiting), g.name, examples(g.waiting))
	}
	if len(g.refusing) > 0 {
		add(conditions.DeletionWaits, "%d deleted volumes of volume group %q are not wiped, as a disk refuses writes (dmesg); lvmd tries again, and then skips single sectors: %s",
			len(g.refusing), g.name, examples(slices.Sorted(maps.Keys(g.refusing))))
	}
	if c.pool == nil && g.textFull() || c.pool != nil && !g.hasThinText() {
		add(conditions.MetadataFull, "the metadata of volume group %q takes %s of at most %s: there is no space for more volumes",
			g.name, quantity.Bytes(g.metadata.Size), quantity.Bytes(g.metadata.Limit))
	}
	if !g.mayHaveMore() {
		add(conditions.TooManyVolumes, "volume group %q has all of the %d logical volumes that it may have (vgchange --logicalvolume)", g.name, g.info.MostVolumes)
	}
	if problem := c.unfit(); problem != nil {
		add(conditions.VolumeGroupUnfit, "%v", problem)
	}
	if !g.unresponsive.IsZero() {
		add(conditions.NotResponding, "LVM commands time out for volume group %q", g.name)
	}
	return r
}
