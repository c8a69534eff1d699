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

// Volume is a logical volume of ours: what is known of it, each part a type of its own. Its
// exported methods may be called at any time, without the lock.
type Volume struct {
	recorded
	lifecycle lifecycle
	group     *Group
	volumeScan
	volumeLimits
	volumeHealth
	volumeWork
	tombstone
	// changed is the generation of what was last published of the volume; removed is
	// set once that was its removal.
	changed uint64
	removed bool
}

// recorded is what the journal keeps of the volume, too.
type recorded struct{ rec spec.Record }

// volumeScan is the volume as LVM's metadata and the kernel describe it.
type volumeScan struct {
	// pool is what a thin volume lies in; nil for others.
	pool *Pool
	// extents is its size, and segments in how many segments it lies, at most.
	extents, segments int64
	// layout is how it lies, and on names the UUIDs of its devices where its
	// group is placed.
	layout layout.Layout
	on     []string
	device lvm.Device
	// dependents are the logical volumes that depend on it.
	dependents dependents
	// halfMade is true of what LVM has not finished making, see halfMade.
	halfMade bool
	// unmade is true of a snapshot that its pool does not have yet, and unseen of one of which a scan
	// could not see whether its pool has it.
	unmade, unseen bool
	// tagged is true when LVM shows that the volume's header was made.
	tagged bool
	making making
	// inspected is true once it was asked for, in this run, whether what should be on the volume
	// is there, with its device if it has one.
	inspected bool
}

// volumeHealth is what is wrong with the volume; all of it is empty when nothing is.
type volumeHealth struct {
	// conditions are those that a scan found; raid is what the kernel says of the images of a
	// RAID volume.
	conditions, raid []*lvmdv1.Condition
	// found is what the node plugin found wrong with what is on the volume.
	found []*lvmdv1.Condition
}

// volumeWork is what is under way with the volume.
type volumeWork struct {
	// op is the creation under way, or nil.
	op *Creation
	// reservedText is what is reserved of the group's metadata for it.
	reservedText int64
	// expansion is the one under way that others can join, or nil.
	expansion *Expansion
	// pins counts the snapshots and volumes that are being made of this one.
	pins int
	// source is set while the volume is made of another one.
	source *source
	// notZeroed is where a new volume may not hold zeroes.
	notZeroed zeroed.Set
	// retryAt delays the next attempt after a failure; failures counts them.
	retryAt  time.Time
	failures int
}

// tombstone is how far the deletion of a volume is, beside its state.
type tombstone struct {
	// handle is open from the moment of deletion until the wipe is done. While a step of the wipe is
	// under way it is nil here, and the step's.
	handle blockdev.Handle
	// segmentsFreed is where a wiped volume lies, if that is known to hold zeroes.
	segmentsFreed []lvm.Segment
	// waitsSince counts the group's chunks up to its own last one, or to its deletion;
	// zero means that it was not looked at yet.
	waitsSince int64
	// step is set while a step of the wipe is under way, and slow while that waits for its disks.
	step, slow bool
	// disks is one name for the set of disks that the volume lies on, once it was asked for.
	disks string
}

// ID is the volume's, and its name in LVM.
func (v *recorded) ID() string { return v.rec.ID }

// Ident is what the volume was created as.
func (v *recorded) Ident() *spec.Identity { return &v.rec.Ident }

// Group is the volume's.
func (v *Volume) Group() *Group { return v.group }

// IsEncrypted reports whether lvmd encrypts the volume, with a key that the kernel
// keeps. One that its user encrypts is as any other to the kernel.
func (v *recorded) IsEncrypted() bool { return v.rec.Ident.Encryption == names.EncryptionEphemeral }

// isBusy reports whether an operation has the volume.
func (v *Volume) isBusy() bool { return v.op != nil || v.lifecycle.state.isClaim() }

// bytes is the volume's size.
func (v *Volume) bytes() int64 { return v.extents * v.group.info.ExtentSize }

// takes is how much of the group's extents so many of the volume's take.
func (v *volumeScan) takes(extents int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.Raw(extents)
}

// takesMore is how many of the group's extents the volume takes by growing.
func (v *volumeScan) takesMore(extents int64) int64 {
	if v.pool != nil {
		return 0
	}
	return v.layout.RawGrowth(extents)
}

// reserve reserves the space for a creation, until unreserve.
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

// unreserve takes back what is reserved for a creation: it was given, or is
// not needed.
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

// reserveMore reserves the space for an expansion; a negative number takes it back.
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

// occupy notes in how many segments a volume lies, as the kernel maps it. Where that is
// not known, what was reserved stays, which is at least as many.
func (v *volumeScan) occupy(segments []lvm.Segment, unmapped error) {
	if unmapped == nil && v.layout.IsLinear() {
		v.segments = max(1, int64(len(segments)))
	}
}

// setDevice notes a volume's device.
func (v *Volume) setDevice(d lvm.Device) {
	v.device = d
	v.conditions = slices.DeleteFunc(slices.Clone(v.conditions), func(c *lvmdv1.Condition) bool { return c.GetType() == conditions.Inactive })
}

// notEncrypted refuses to make something of an encrypted volume.
func (v *recorded) notEncrypted(field string) error {
	if v.rec.Ident.Encryption != "" {
		return apierror.InvalidField(field, "volume %s is encrypted with a key that nothing else may have: it is neither copied nor snapshotted", v.rec.ID)
	}
	return nil
}

// allConditions are the volume's own conditions and those of its pool, one of each type.
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

// lookup finds a volume, or a snapshot, by exactly one of id and name. Tombstones are not found.
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

// Volume is the volume or snapshot of an id, tombstones included, or nil.
func (m *Inventory) Volume(id string) *Volume {
	m.lock()
	defer m.unlock()
	return m.volumes[id]
}

// Record is what is known of a volume that the journal keeps, too.
func (v *Volume) Record() spec.Record {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.rec
}

// LiesIn returns the pool of a thin volume, and whether a volume has legs, of which LVM can split one off.
func LiesIn(v *Volume) (pool string, legs bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	if v.pool != nil {
		pool = v.pool.name
	}
	return pool, v.layout.IsRAID()
}

// IsThin reports whether the volume lies in a thin pool. Of a volume that the journal knows, this is
// not known before the first scan of its group.
func (v *Volume) IsThin() bool {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.pool != nil
}

// Release takes a volume from the operation that claimed it.
func (v *Volume) Release() {
	m := v.group.m
	m.lock()
	defer m.unlock()
	m.enter(v, v.lifecycle.released())
}

// SetDevice notes a volume's device.
func (v *Volume) SetDevice(d lvm.Device) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.setDevice(d)
}

// SetFound replaces what the node plugin found wrong with what is on a volume.
func (m *Inventory) SetFound(id string, found []*lvmdv1.Condition) error {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	if err != nil {
		return err
	}
	if !sameConditions(v.found, found) {
		// It is replaced, never written to: watchers may be sending what it was.
		v.found = found
		m.publish(v.group, v)
	}
	return nil
}

// mustBeZeroed reports whether all that a volume shows to its user must be zeroes.
// A file system shows nothing but what was written to it, as does a key; and classes that are
// not wiped show what they show.
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

// TakeHandles returns the open devices of all tombstones, which the caller closes.
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
