package inventory

import (
	"slices"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// Volume is a logical volume of ours. Its exported methods need no lock.
type Volume struct {
	recorded
	lifecycle lifecycle
	group     *Group
	volumeScan
	volumeLimits
	volumeHealth
	volumeWork
	tombstone
	// changed is the generation of the last report; removed means that it was the removal.
	changed uint64
	removed bool
}

// recorded is kept by the journal, too.
type recorded struct{ rec spec.Record }

// volumeScan is the volume as LVM's metadata and the kernel describe it.
type volumeScan struct {
	// pool is nil unless the volume is thin.
	pool *Pool
	// segments is an upper bound.
	extents, segments int64
	// on has the UUIDs of its devices, in placed groups.
	layout     layout.Layout
	on         []string
	device     lvm.Device
	dependents dependents
	// halfMade: see the function halfMade.
	halfMade bool
	// unmade is true of a snapshot that its pool does not have yet, unseen of one that a scan could
	// not look for in its pool.
	unmade, unseen bool
	// tagged is true if LVM's tags show that the volume's LUKS header was made.
	tagged bool
	making making
	// inspected is true once this run has checked the volume's contents, on its device if it has
	// one.
	inspected bool
}

type volumeHealth struct {
	// conditions are the last scan's; raid has those of the images, by the kernel.
	conditions, raid []*lvmdv1.Condition
	// found has those that the node plugin found on the volume.
	found []*lvmdv1.Condition
}

type volumeWork struct {
	// op is the creation under way, or nil.
	op *Creation
	// reservedText is the reserved space in the group's metadata, in bytes.
	reservedText int64
	// expansion is the one under way that others can join, or nil.
	expansion *Expansion
	// pins counts the snapshots and volumes being created from this one.
	pins int
	// source is nil unless the volume is being created from another one.
	source *source
	// notZeroed is where a new volume may not hold zeroes.
	notZeroed zeroed.Set
	// retryAt delays the next attempt; failures counts those that failed in a row.
	retryAt  time.Time
	failures int
}

// tombstone is the progress of a deletion, apart from the state.
type tombstone struct {
	// handle is open from the deletion until the end of the wipe. A step of the wipe takes it; it
	// is nil here meanwhile.
	handle blockdev.Handle
	// segmentsFreed are the segments of a wiped volume, if they hold zeroes.
	segmentsFreed []lvm.Segment
	// waitsSince is the group's chunk count after the volume's last chunk, or when NextToWipe first
	// saw it; zero before that.
	waitsSince int64
	// step is true during a step of the wipe, and slow while that waits for its disks.
	step, slow bool
	// disks names the set of disks that the volume lies on; empty until it is known.
	disks string
}

// ID returns the volume's id, which is its name in LVM.
func (v *recorded) ID() string { return v.rec.ID }

// Ident returns the identity that the volume was created with.
func (v *recorded) Ident() *spec.Identity { return &v.rec.Ident }

// Group returns the volume's group.
func (v *Volume) Group() *Group { return v.group }

// IsEncrypted reports whether lvmd encrypts the volume, with a key in the kernel. A volume that its
// user encrypts does not count.
func (v *recorded) IsEncrypted() bool { return v.rec.Ident.Encryption == names.EncryptionEphemeral }

func (v *Volume) isBusy() bool { return v.op != nil || v.lifecycle.state.isClaim() }

func (v *Volume) bytes() int64 { return v.extents * v.group.info.ExtentSize }

// takes returns the group's extents that the given extents of the volume occupy.
func (v *volumeScan) takes(extents int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.Raw(extents)
}

// takesMore returns the group's extents that growth by the given extents takes.
func (v *volumeScan) takesMore(extents int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.RawGrowth(extents)
}

func (v *Volume) reserve() {
	if v.pool != nil {
		v.pool.creating += v.extents
	} else {
		v.group.creating += v.takes(v.extents)
		v.planCreation()
	}
	v.group.creations++
	v.group.reservedText += v.reservedText
}

func (v *Volume) unreserve() {
	if v.pool != nil {
		v.pool.creating -= v.extents
	} else {
		v.group.creating -= v.takes(v.extents)
		delete(v.group.plans, v)
	}
	v.group.creations--
	v.group.reservedText -= v.reservedText
	v.reservedText = 0
}

// reserveMore reserves the space for an expansion; a negative number releases it.
func (v *Volume) reserveMore(extents int64) {
	if v.pool != nil {
		v.pool.expanding += extents
		return
	}
	v.group.expanding += v.layout.RawGrowth(extents)
	if delete(v.group.plans, v); extents > 0 {
		v.planGrowth(extents)
	}
}

// occupy sets the number of segments, by the kernel's mapping. If that is unknown, the reserved
// number stays, which is at least as large.
func (v *volumeScan) occupy(segments []lvm.Segment, unmapped error) {
	if unmapped == nil && v.layout.IsLinear() {
		v.segments = max(1, int64(len(segments)))
	}
}

func (v *Volume) setDevice(d lvm.Device) {
	v.device = d
	v.conditions = slices.DeleteFunc(slices.Clone(v.conditions), func(c *lvmdv1.Condition) bool { return c.GetType() == conditions.Inactive })
}

func (v *recorded) notEncrypted(field string) error {
	if v.rec.Ident.Encryption != "" {
		return apierror.InvalidField(field, "volume %s is encrypted with a key that nothing else may have: it is neither copied nor snapshotted", v.rec.ID)
	}
	return nil
}

func (v *Volume) allConditions() []*lvmdv1.Condition {
	all := slices.Concat(v.conditions, v.raid)
	if v.pool != nil {
		all = slices.Concat(v.conditions, v.pool.sharedConditions(), v.pool.raid)
	}
	if v.rec.Phase == spec.Unfinished {
		all = append(all, condition(conditions.ContentsNotFound, "%s", contentsNotFound(v)))
	}
	return oneOfEachType(all)
}

// lookup finds a volume, or a snapshot, by exactly one of id and name. It finds no tombstones.
func (m *model) lookup(id, name string, snapshot bool) (*Volume, error) {
	notFound := apierror.VolumeNotFound
	if snapshot {
		notFound = apierror.SnapshotNotFound
	}
	switch {
	case id == "" && name == "":
		return nil, apierror.InvalidField("id", "neither id nor name is set; exactly one must be")
	case id != "" && name != "":
		return nil, apierror.InvalidField("id", "id and name are both set; exactly one must be")
	case name != "":
		if v := m.names[spec.Identity{Name: name, Snapshot: snapshot}.Key()]; v != nil {
			return v, nil
		}
		return nil, notFound(name)
	}
	if v := m.volumes[id]; v != nil && v.rec.Phase != spec.Deleting && v.rec.Ident.Snapshot == snapshot {
		return v, nil
	}
	for _, g := range m.groups {
		if why := g.leftAlone[id]; why != "" {
			return nil, apierror.VolumeLeftAlone(id, g.name, why)
		}
	}
	return nil, notFound(id)
}

// Volume returns the volume or snapshot of an id, tombstones included, or nil.
func (m *Inventory) Volume(id string) *Volume {
	m.lock()
	defer m.unlock()
	return m.volumes[id]
}

// Record returns the volume's record for the journal.
func (v *Volume) Record() spec.Record {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.rec
}

// LiesIn returns the pool of a thin volume, and whether the volume has legs that LVM can split off.
func LiesIn(v *Volume) (pool string, legs bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	if v.pool != nil {
		pool = v.pool.name
	}
	return pool, v.layout.IsRAID()
}

// IsThin reports whether the volume lies in a thin pool. For a volume from the journal it is false
// before the first scan of the group.
func (v *Volume) IsThin() bool {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.pool != nil
}

// Release ends the claim of the volume.
func (v *Volume) Release() {
	m := v.group.m
	m.lock()
	defer m.unlock()
	m.enter(v, v.lifecycle.released())
}

// SetDevice sets the volume's device.
func (v *Volume) SetDevice(d lvm.Device) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.setDevice(d)
}

// SetFound replaces the conditions that the node plugin found on a volume.
func (m *Inventory) SetFound(id string, found []*lvmdv1.Condition) error {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	if err != nil {
		return err
	}
	if !sameConditions(v.found, found) {
		// Replace the slice: watchers may be sending the old one.
		v.found = found
		m.publish(v.group, v)
	}
	return nil
}

// mustBeZeroed reports whether users must read only zeroes from a new volume. File systems and
// encryption show nothing that was not written through them; classes that do not wipe may show
// anything.
func (m *model) mustBeZeroed(i spec.Identity) bool {
	if !i.Block || i.Encryption != "" {
		return false
	}
	c := m.class(i.Class)
	return c == nil || c.wipes()
}

// IsIdle reports whether no operation has any volume.
func (m *Inventory) IsIdle() bool {
	m.lock()
	defer m.unlock()
	for _, v := range m.volumes {
		if v.isBusy() {
			return false
		}
	}
	return true
}

// TakeHandles returns the open devices of all tombstones, for the caller to close.
func (m *Inventory) TakeHandles() []blockdev.Handle {
	m.lock()
	defer m.unlock()
	var open []blockdev.Handle
	for _, v := range m.volumes {
		if v.handle != nil {
			open = append(open, v.handle)
			v.handle = nil
		}
	}
	return open
}
