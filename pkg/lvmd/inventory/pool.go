package inventory

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Pool is a thin pool of a class, or one that no class names but that has volumes of ours.
type Pool struct {
	name  string
	group *Group
	// settings are those of the pool's class; nil without one.
	settings *config.ThinPool
	// creating and expanding are extents reserved for operations that LVM has yet to carry out.
	creating, expanding int64
	poolScan
	poolHealth
}

type poolScan struct {
	// present is false while LVM does not know the pool.
	present bool
	// extents is the size of the data, metadata that of the metadata in bytes.
	extents, metadata int64
	data, metadataAt  ondisk.Volume
	// zeroes is true if LVM zeroes new blocks.
	zeroes bool
	// virtual is the sum of its volumes and snapshots, ours or not, in extents.
	virtual int64
}

type poolHealth struct {
	// known is false if the kernel reported no status.
	status lvm.PoolStatus
	known  bool
	// raid has the conditions of the images of its data and metadata.
	raid []*lvmdv1.Condition
	// inactive is when the pool was first found without a device, or zero.
	inactive      time.Time
	activation    Activation
	activationErr error
	// stuck is why the pool could not be extended, unmade why it could not be made; or empty.
	stuck, unmade string
}

// Activation is the progress of activating a pool without a device.
type Activation int

// The activations of a pool.
const (
	// NotActivating means that the pool has a device, or is left alone.
	NotActivating Activation = iota
	// CheckingMetadata means that thin_check runs before the activation.
	CheckingMetadata
	// Activating means that LVM makes the device, and may check the metadata for that.
	Activating
	// ActivationFailed means that lvmd will retry.
	ActivationFailed
)

// pool adds the pool if need be. It returns nil for the empty name, which volumes that are not thin
// have.
func (g *Group) pool(name string) *Pool {
	p := g.pools[name]
	if p == nil && name != "" {
		p = &Pool{name: name, group: g}
		if g.pools == nil {
			g.pools = map[string]*Pool{}
		}
		g.pools[name] = p
	}
	return p
}

func (p *Pool) usable() bool {
	return p.present && p.known && p.zeroes && !p.metadataHigh() &&
		!p.status.Failed && !p.status.ReadOnly && !p.status.NeedsCheck && !p.status.OutOfData
}

// limit bounds the sum of the pool's volumes, in extents.
func (p *Pool) limit() int64 {
	return config.MulDiv(p.extents, p.ratio(), 100)
}

func (p *Pool) ratio() int64 {
	if p.settings == nil {
		return config.DefaultOverprovisioning
	}
	return p.settings.Overprovisioning
}

// freeBeside returns the extents available to a new volume, if existing volumes and reservations
// have committed. The overprovisioning limits it, and so does the larger of
//
//   - the space left if all volumes were written full, and
//   - the space left below the data's threshold, overprovisioned likewise.
func (p *Pool) freeBeside(committed int64) int64 {
	if !p.usable() {
		return 0
	}
	left := int64(0)
	if most := config.MulDiv(p.status.DataTotal, p.dataThreshold(), 100); most > p.status.DataUsed {
		left = config.MulDiv(most-p.status.DataUsed, p.extents, p.status.DataTotal)
	}
	allowed := max(p.extents-committed, config.MulDiv(left, p.ratio(), 100))
	return max(0, min(p.limit()-committed, allowed))
}

// reportedFree is for watchers, see classGroup.reportedFree.
func (p *Pool) reportedFree() int64 { return p.freeBeside(p.virtual + p.creating) }

// free is net of all operations under way.
func (p *Pool) free() int64 { return p.freeBeside(p.virtual + p.creating + p.expanding) }

func (p *Pool) dataThreshold() int64 {
	if p.settings == nil {
		return config.DefaultThreshold
	}
	return p.settings.DataThreshold
}

func (p *Pool) metadataThreshold() int64 {
	if p.settings == nil {
		return config.DefaultThreshold
	}
	return p.settings.MetadataThreshold
}

func (p *Pool) dataHigh() bool {
	return p.known && !p.status.Failed && p.status.DataUsed*100 >= p.status.DataTotal*p.dataThreshold()
}

func (p *Pool) metadataHigh() bool {
	return p.known && !p.status.Failed && p.status.MetadataUsed*100 >= p.status.MetadataTotal*p.metadataThreshold()
}

// sharedConditions concern the pool's volumes as much as its class. Their messages change only when
// something is to be done.
func (p *Pool) sharedConditions() []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	add := func(kind, format string, args ...any) { c = append(c, condition(kind, format, args...)) }
	switch {
	case !p.present && p.unmade != "":
		add(conditions.PoolMissing, "thin pool %q of volume group %q could not be made, which is tried again: %s", p.name, p.group.name, p.unmade)
	case !p.present:
		add(conditions.PoolMissing, "thin pool %q is gone from volume group %q", p.name, p.group.name)
	case !p.known:
		add(conditions.PoolInactive, "thin pool %q has no device%s", p.name, p.whyInactive())
	case p.status.Failed:
		add(conditions.PoolFailed, "thin pool %q failed and answers no more I/O; deactivate it and repair it (lvconvert --repair)", p.name)
	case p.status.NeedsCheck:
		add(conditions.PoolNeedsCheck, "the metadata of thin pool %q had an error; deactivate it and repair it (lvconvert --repair)", p.name)
	case p.status.ReadOnly:
		add(conditions.PoolReadOnly, "the metadata of thin pool %q cannot be written; all its volumes are read-only", p.name)
	case p.status.OutOfData:
		add(conditions.PoolFull, "thin pool %q is full: writes to new blocks fail; extend it (lvextend) or delete volumes", p.name)
	}
	return c
}

// whyInactive completes the message that the pool has no device.
func (p *Pool) whyInactive() string {
	if p.inactive.IsZero() {
		return ""
	}
	since := " since " + p.inactive.UTC().Format(time.RFC3339)
	switch p.activation {
	case CheckingMetadata:
		return since + ": its metadata are being checked (thin_check), after which it is activated"
	case Activating:
		return since + ": it is being activated, for which LVM checks its metadata (thin_check); no other change is made in volume group \"" + p.group.name + "\" meanwhile"
	case ActivationFailed:
		return since + ": it could not be activated, which is tried again: " + p.activationErr.Error()
	case NotActivating:
	}
	return since
}

func (p *Pool) conditions() []*lvmdv1.Condition {
	c := append(p.sharedConditions(), p.raid...)
	add := func(kind, format string, args ...any) { c = append(c, condition(kind, format, args...)) }
	if p.dataHigh() {
		add(conditions.PoolDataHigh, "the data of thin pool %q is used to %d%% or more: overprovisioned volumes are refused", p.name, p.dataThreshold())
	}
	if p.metadataHigh() {
		add(conditions.PoolMetadataHigh, "the metadata of thin pool %q is used to %d%% or more: new volumes are refused", p.name, p.metadataThreshold())
	}
	if p.present && !p.zeroes {
		add(conditions.PoolKeepsOldData, "thin pool %q does not zero new blocks: new volumes are refused (lvchange --zero y %s/%s)", p.name, p.group.name, p.name)
	}
	if p.known && p.status.QueuesWhenFull {
		add(conditions.PoolQueuesWhenFull, "thin pool %q lets writes wait when it is full instead of failing them (lvchange --errorwhenfull y)", p.name)
	}
	if p.stuck != "" {
		add(conditions.PoolCannotGrow, "thin pool %q cannot be extended: %s", p.name, p.stuck)
	}
	return c
}

func (p *Pool) refusal() string {
	if p.usable() {
		return ""
	}
	if c := p.conditions(); len(c) > 0 {
		return c[0].GetMessage()
	}
	return "the thin pool is not ready"
}

func (g *Group) mergePools(scan *lvm.Group, where ondisk.Placement) {
	for _, p := range g.pools {
		p.present, p.virtual = false, 0
	}
	for i := range scan.Volumes {
		lv := &scan.Volumes[i]
		extents := lv.Size / scan.ExtentSize
		switch {
		case lv.Pool != "":
			g.pool(lv.Pool).virtual += extents
		case lv.Attr.IsThinPool():
			p := g.pool(lv.Name)
			p.present, p.extents, p.metadata, p.zeroes = true, extents, lv.MetadataSize, lv.Attr.ZeroNew
			if where.Seqno == scan.Seqno {
				p.data, p.metadataAt = where.Volumes[p.name+"_tdata"], where.Volumes[p.name+"_tmeta"]
			}
		}
	}
}

// Name returns the pool's name, without the lock.
func (p *Pool) Name() string { return p.name }

// Group returns the pool's group, without the lock.
func (p *Pool) Group() *Group { return p.group }

func (p *Pool) unhealthyType() string {
	for _, c := range p.sharedConditions() {
		return c.GetType()
	}
	return ""
}

func (p *Pool) class() *class {
	if p.settings == nil {
		return nil
	}
	for _, c := range p.group.m.classes {
		if in := c.in(p.group); in != nil && in.pool == p {
			return c
		}
	}
	return nil
}

func (m *model) attachPools() {
	for _, g := range m.groups {
		for _, p := range g.pools {
			p.settings = nil
		}
	}
	for _, c := range m.classes {
		if c.Type != config.Thin {
			continue
		}
		for _, in := range c.groups {
			in.pool = in.group.pool(c.Thin.Pool)
			in.pool.settings = c.Thin
		}
	}
}

// volumes leaves out tombstones.
func (p *Pool) volumes() []*Volume {
	var all []*Volume
	for _, v := range p.group.m.volumes {
		if v.pool == p && v.rec.Phase != spec.Deleting {
			all = append(all, v)
		}
	}
	return all
}

// Pools returns the known thin pools of a group; nil stands for all groups.
func (m *Inventory) Pools(g *Group) []*Pool {
	m.lock()
	defer m.unlock()
	var all []*Pool
	for _, other := range m.groups {
		for _, p := range other.pools {
			if g == nil || other == g {
				all = append(all, p)
			}
		}
	}
	return all
}

// ClassPools reports which thin pools of the group belong to a class, by name.
func (g *Group) ClassPools() map[string]bool {
	m := g.m
	m.lock()
	defer m.unlock()
	pools := map[string]bool{}
	for name, p := range g.pools {
		pools[name] = p.settings != nil
	}
	return pools
}

// SetStatus sets the kernel's status of the pool; known is false if it reports none. It notifies
// watchers of what changes for the class and the volumes. appeared is true if the pool has got a
// device.
func (p *Pool) SetStatus(status lvm.PoolStatus, known bool) (appeared bool) {
	m := p.group.m
	m.lock()
	defer m.unlock()
	if known && !status.Failed && (status.DataTotal < 1 || status.MetadataTotal < 1) {
		known = false
	}
	if p.known == known && p.status == status && known == p.inactive.IsZero() {
		return false
	}
	before := p.unhealthyType()
	appeared = known && !p.known
	p.known, p.status = known, status
	switch {
	case known:
		p.inactive, p.activation = time.Time{}, NotActivating
	case p.inactive.IsZero():
		p.inactive = time.Now()
	}
	var changed []*Volume
	if p.unhealthyType() != before {
		changed = p.volumes()
	}
	m.publish(p.group, changed...)
	return appeared
}

// SetActivation sets the progress of a pool's activation, and why that failed.
func SetActivation(g *Group, pool string, now Activation, why error) {
	m := g.m
	m.lock()
	defer m.unlock()
	p := g.pool(pool)
	p.activation, p.activationErr = now, why
	if p.inactive.IsZero() {
		p.inactive = time.Now()
	}
	m.publish(g, p.volumes()...)
}

// IsActivating reports whether LVM is making the pool's device.
func (p *Pool) IsActivating() bool {
	m := p.group.m
	m.lock()
	defer m.unlock()
	return p.activation == Activating
}

// isAway reports whether the pool, which may be nil, lacks its device: LVM would activate it for a
// command on its volumes.
func (p *Pool) isAway() bool { return p != nil && p.present && !p.known }

// SetPoolUnmade sets why a pool could not be made, to be retried after retry; nil means that it
// was.
func (g *Group) SetPoolUnmade(name string, err error, retry time.Duration) {
	m := g.m
	m.lock()
	defer m.unlock()
	p := g.pool(name)
	p.unmade = ""
	if err != nil {
		p.unmade = err.Error()
	}
	g.poolsDue = time.Time{}
	for _, p := range g.pools {
		if p.unmade != "" {
			g.poolsDue = time.Now().Add(retry)
		}
	}
}

func lacksPool(g *Group) bool {
	for _, p := range g.pools {
		if p.settings != nil && !p.present {
			return true
		}
	}
	return false
}

func (p *Pool) components() map[string]ondisk.Volume {
	return map[string]ondisk.Volume{p.name + "_tdata": p.data, p.name + "_tmeta": p.metadataAt}
}

func (p *Pool) raidConditions(found map[string]lvm.RAIDStatus) []*lvmdv1.Condition {
	var all []*lvmdv1.Condition
	for _, name := range slices.Sorted(maps.Keys(p.components())) {
		for _, c := range raidConditions(found[name]) {
			all = append(all, condition(c.GetType(), "thin pool %q: %s", p.name, c.GetMessage()))
		}
	}
	// For each type of condition, the data's is enough.
	slices.SortStableFunc(all, func(a, b *lvmdv1.Condition) int { return strings.Compare(a.GetType(), b.GetType()) })
	return slices.CompactFunc(all, func(a, b *lvmdv1.Condition) bool { return a.GetType() == b.GetType() })
}

// PoolSizes are the input to the decision whether to extend a pool.
type PoolSizes struct {
	Settings *config.ThinPool
	// Total and Free are in extents of ExtentSize bytes; Free is net of reservations and the class'
	// reserve.
	Total, ExtentSize, Free int64
	// DataDue and MetadataDue are true if that component has to grow.
	DataDue, MetadataDue bool
	// Extents is the size of the data, and Metadata that of the metadata in bytes.
	Extents, Metadata          int64
	DataLayout, MetadataLayout layout.Layout
	// DataGrowth and MetadataGrowth are how far each component can grow on its devices, in extents.
	DataGrowth, MetadataGrowth int64
}

// Sizes returns nil if the pool must not be extended now.
func (p *Pool) Sizes() *PoolSizes {
	m := p.group.m
	m.lock()
	defer m.unlock()
	g := p.group
	c := p.class()
	if c == nil || p.settings.AutoExtend == nil || !p.present || !p.known || p.status.Failed || p.status.NeedsCheck || !g.canFree() {
		return nil
	}
	reserve := c.in(g).reserved()
	free := max(0, g.allocatable-g.creating-g.expanding-reserve)
	return &PoolSizes{
		Settings: p.settings, Total: g.info.Extents, ExtentSize: g.info.ExtentSize, Free: free,
		DataDue: p.dataHigh() || p.status.OutOfData, MetadataDue: p.metadataHigh(), Extents: p.extents, Metadata: p.metadata,
		DataLayout: p.data.Layout, MetadataLayout: p.metadataAt.Layout,
		DataGrowth: g.growthOf(p.data, free, reserve), MetadataGrowth: g.growthOf(p.metadataAt, free, reserve),
	}
}

// PoolGrowth is a reservation for the growth of a pool's data.
type PoolGrowth struct {
	pool           *Pool
	extents, takes int64
	reserved       bool
}

// Plan sets why the pool cannot grow, or "", and reserves the space for data of the given extents
// until the growth's Commit or Release. It returns nil for zero extents.
func (p *Pool) Plan(extents int64, stuck string) *PoolGrowth {
	m := p.group.m
	m.lock()
	defer m.unlock()
	if p.stuck != stuck {
		p.stuck = stuck
		m.publish(p.group)
	}
	if extents == 0 {
		return nil
	}
	g := &PoolGrowth{pool: p, extents: extents, takes: p.data.Layout.RawGrowth(extents - p.extents), reserved: true}
	p.group.expanding += g.takes
	return g
}

// Release releases the reservation, once.
func (g *PoolGrowth) Release() {
	m := g.pool.group.m
	m.lock()
	defer m.unlock()
	g.release()
}

func (g *PoolGrowth) release() {
	if g.reserved {
		g.reserved = false
		g.pool.group.expanding -= g.takes
	}
}

// Place chooses the devices for the growth of the metadata to the given bytes or, if zero, of the
// data to extents. It returns nil if LVM chooses, and fails without space. The caller has the
// group's slot.
func (p *Pool) Place(extents, metadata int64) ([]layout.Share, error) {
	m := p.group.m
	m.lock()
	defer m.unlock()
	if metadata > 0 {
		return p.group.placeGrowth("the metadata of thin pool "+p.name, p.metadataAt, (metadata-p.metadata)/p.group.info.ExtentSize)
	}
	return p.group.placeGrowth("thin pool "+p.name, p.data, extents-p.extents)
}
