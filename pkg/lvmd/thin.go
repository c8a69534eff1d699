package lvmd

import (
	"context"
	"slices"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// pool is a thin pool of a volume group: that of a class, or one that volumes
// of ours lie in although no class names it any more. The model's lock guards
// it.
type pool struct {
	name  string
	group *group
	// settings are those of the pool's class; nil without one.
	settings *config.ThinPool
	// present is false while LVM does not know the pool.
	present bool
	// extents is the size of its data, metadata that of its metadata in bytes.
	extents, metadata int64
	// zeroes is true when what a volume is given reads as zeroes.
	zeroes bool
	// virtual is what all of its volumes and snapshots, ours or not, have in
	// sum, in extents.
	virtual int64
	// creating and expanding are extents promised to operations that LVM has
	// not carried out yet.
	creating, expanding int64
	// status is what the kernel last said; known is false when it said nothing.
	status lvm.PoolStatus
	known  bool
	// stuck is why the pool could not be extended, unmade why it could not be made;
	// or empty.
	stuck, unmade string
}

// pool returns the group's pool of the given name, which it makes known.
func (g *group) pool(name string) *pool {
	p := g.pools[name]
	if p == nil {
		p = &pool{name: name, group: g}
		if g.pools == nil {
			g.pools = map[string]*pool{}
		}
		g.pools[name] = p
	}
	return p
}

// usable tells whether the pool can take new volumes at all.
func (p *pool) usable() bool {
	return p.present && p.known && p.zeroes && !p.metadataHigh() &&
		!p.status.Failed && !p.status.ReadOnly && !p.status.NeedsCheck && !p.status.OutOfData
}

// limit is what the pool's volumes may have in sum, in extents.
func (p *pool) limit() int64 {
	return config.MulDiv(p.extents, p.ratio(), 100)
}

func (p *pool) ratio() int64 {
	if p.settings == nil {
		return config.DefaultOverprovisioning
	}
	return p.settings.Overprovisioning
}

// room is how many extents a new volume can have where the volumes there are,
// and what else is promised, have so many in sum: what the overprovisioning
// leaves, but no more than
//
//   - what the pool could hold if all volumes were written full, or
//   - what is left below the threshold of the data, overprovisioned likewise,
//
// whichever is more.
func (p *pool) room(committed int64) int64 {
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

// reportedRoom is the room as watchers are told it, see part.reportedRoom.
func (p *pool) reportedRoom() int64 { return p.room(p.virtual + p.creating) }

// freeRoom is the room beside all operations under way.
func (p *pool) freeRoom() int64 { return p.room(p.virtual + p.creating + p.expanding) }

func (p *pool) dataThreshold() int64 {
	if p.settings == nil {
		return config.DefaultThreshold
	}
	return p.settings.DataThreshold
}

func (p *pool) metadataThreshold() int64 {
	if p.settings == nil {
		return config.DefaultThreshold
	}
	return p.settings.MetadataThreshold
}

// dataHigh tells whether the data's threshold is passed.
func (p *pool) dataHigh() bool {
	return p.known && !p.status.Failed && p.status.DataUsed*100 >= p.status.DataTotal*p.dataThreshold()
}

// metadataHigh tells whether the metadata's threshold is passed.
func (p *pool) metadataHigh() bool {
	return p.known && !p.status.Failed && p.status.MetadataUsed*100 >= p.status.MetadataTotal*p.metadataThreshold()
}

// troubles are the conditions that concern the pool's volumes as much as its
// class. Their messages change only when something is to be done.
func (p *pool) troubles() []*lvmdv1.Condition {
	var c []*lvmdv1.Condition
	add := func(kind, format string, args ...any) { c = append(c, condition(kind, format, args...)) }
	switch {
	case !p.present && p.unmade != "":
		add("PoolMissing", "thin pool %q of volume group %q could not be made, which is tried again: %s", p.name, p.group.name, p.unmade)
	case !p.present:
		add("PoolMissing", "thin pool %q is gone from volume group %q", p.name, p.group.name)
	case !p.known:
		add("PoolInactive", "thin pool %q has no device", p.name)
	case p.status.Failed:
		add("PoolFailed", "thin pool %q failed and answers no more I/O; deactivate it and repair it (lvconvert --repair)", p.name)
	case p.status.NeedsCheck:
		add("PoolNeedsCheck", "the metadata of thin pool %q had an error; deactivate it and repair it (lvconvert --repair)", p.name)
	case p.status.ReadOnly:
		add("PoolReadOnly", "the metadata of thin pool %q cannot be written; all its volumes are read-only", p.name)
	case p.status.OutOfData:
		add("PoolFull", "thin pool %q is full: writes to new blocks fail; extend it (lvextend) or delete volumes", p.name)
	}
	return c
}

// conditions are those that the pool adds to its class.
func (p *pool) conditions() []*lvmdv1.Condition {
	c := p.troubles()
	add := func(kind, format string, args ...any) { c = append(c, condition(kind, format, args...)) }
	if p.dataHigh() {
		add("PoolDataHigh", "the data of thin pool %q is used to %d%% or more: overprovisioned volumes are refused", p.name, p.dataThreshold())
	}
	if p.metadataHigh() {
		add("PoolMetadataHigh", "the metadata of thin pool %q is used to %d%% or more: new volumes are refused", p.name, p.metadataThreshold())
	}
	if p.present && !p.zeroes {
		add("PoolKeepsOldData", "thin pool %q does not zero new blocks: new volumes are refused (lvchange --zero y)", p.name)
	}
	if p.known && p.status.QueuesWhenFull {
		add("PoolQueuesWhenFull", "thin pool %q lets writes wait when it is full instead of failing them (lvchange --errorwhenfull y)", p.name)
	}
	if p.stuck != "" {
		add("PoolCannotGrow", "thin pool %q cannot be extended: %s", p.name, p.stuck)
	}
	return c
}

// refusal says why the pool takes no new volume at all, or nothing.
func (p *pool) refusal() string {
	if p.usable() {
		return ""
	}
	if c := p.conditions(); len(c) > 0 {
		return c[0].GetMessage()
	}
	return "the thin pool is not ready"
}

// mergePools takes what a scan says of thin pools over into the model. The
// caller holds the model's lock.
func (g *group) mergePools(scan *lvm.Group) {
	for _, p := range g.pools {
		p.present, p.virtual = false, 0
	}
	for i := range scan.Volumes {
		lv := &scan.Volumes[i]
		extents := lv.Size / scan.ExtentSize
		switch {
		case lv.Pool != "":
			g.pool(lv.Pool).virtual += extents
		case lv.Attr.Type == poolType:
			p := g.pool(lv.Name)
			p.present, p.extents, p.metadata, p.zeroes = true, extents, lv.MetadataSize, lv.Attr.ZeroNew
		}
	}
}

// poolType is lv_attr's first character for thin pools.
const poolType = 't'

// poolOf is the pool of a scanned volume; nil when it is not thin.
func (g *group) poolOf(lv *lvm.Volume) *pool {
	if lv.Pool == "" {
		return nil
	}
	return g.pool(lv.Pool)
}

// takes is how much of the group's extents so many of the volume's take.
func (v *volume) takes(extents int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.Raw(extents)
}

// promise keeps the room for a creation, until redeem. The caller holds the
// model's lock.
func (v *volume) promise() {
	if v.pool != nil {
		v.pool.creating += v.extents
	} else {
		v.group.creating += v.takes(v.extents)
		v.planCreation()
	}
	v.group.creations++
	v.group.promisedText += v.promisedText
}

// promiseMore keeps the room for an expansion; a negative number takes it back.
// The caller holds the model's lock.
func (v *volume) promiseMore(extents int64) {
	if v.pool != nil {
		v.pool.expanding += extents
	} else {
		v.group.expanding += v.layout.RawGrowth(extents)
		if delete(v.group.plans, v); extents > 0 {
			v.planGrowth(extents)
		}
	}
}

// hasThinText reports whether the group's metadata has space for one more thin volume,
// which is in one piece.
func (g *group) hasThinText() bool {
	return g.hasText(lvm.VolumeText(nil, 1) + typicalTags)
}

// carveThin is what carve does for a thin volume, once the intent is written.
func (s *Service) carveThin(ctx context.Context, v *volume) error {
	g, p := v.group, v.pool
	err := s.changeBy(ctx, g, lvm.ThinSteps, 0,
		func(ctx context.Context) error {
			return s.lvm.CreateThin(forClassOf(ctx, v), lvm.ThinOptions{
				Group: g.name, Pool: p.name, Volume: v.rec.ID,
				Bytes: v.extents * g.info.ExtentSize, Tags: v.tags(),
			})
		},
		func() []*volume {
			v.redeem()
			p.virtual += v.extents
			g.exists[v.rec.ID] = true
			return nil
		})
	return s.carved(ctx, v, err)
}

// allConditions are the volume's own conditions and those of its pool. The
// caller holds the model's lock.
func (v *volume) allConditions() []*lvmdv1.Condition {
	if v.pool == nil {
		return slices.Concat(v.conditions, v.raid)
	}
	return slices.Concat(v.conditions, v.pool.troubles())
}
