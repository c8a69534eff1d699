package inventory

import (
	"errors"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"

	"golang.org/x/sys/unix"
)

// Group is a volume group: what is known of it, each part a type of its own.
type Group struct {
	m    *model
	name string
	// absence says why lvmd has not made the group yet, to follow what says that it does not
	// exist; empty for a group that lvmd does not make.
	absence string
	groupIdentity
	groupScan
	groupHealth
	freeSpace
	zeroedSpace
	// pools are the group's thin pools that we have to do with, by name, and poolsDue is when
	// those that could not be made are tried again, or those of a group that has appeared are made, or zero.
	pools    map[string]*Pool
	poolsDue time.Time
}

// groupScan is the group as LVM's metadata describes it.
type groupScan struct {
	// present is false while LVM does not know the group.
	present bool
	// info is the group as last scanned, but for its volumes.
	info lvm.Group
	// exists names all logical volumes of the group, ours or not.
	exists map[string]bool
	// extensions are the logical volumes that hold what volumes are growing by.
	extensions map[string]bool
	// leftAlone are the logical volumes with tags of Carve that are not taken for ours, by
	// name, and why.
	leftAlone map[string]string
	// waiting says of deleted volumes what depends on them.
	waiting []string
	// hidden is the sequence number that the disks had when a scan did not find the group, or zero.
	hidden uint64
	// foreign is in how many segments volumes lie that are not ours.
	foreign int64
	// scanned is when the group was last scanned. recheck is set when a device came or went
	// since; stale when a command may have changed more than was noticed; unreadable while the
	// sequence number cannot be read although a scan finds the group, which is then scanned
	// at intervals; unseen while a scan could not see whether a pool has a snapshot of the group.
	scanned                            time.Time
	recheck, stale, unreadable, unseen bool
}

// groupIdentity is which group it is.
type groupIdentity struct {
	// pinned is what the journal has the group known by, and refused says why a group
	// of its name is not taken for it.
	pinned  lvm.Identity
	refused Refusal
	// wasThere is true once the group was there since lvmd started.
	wasThere bool
	// replaced says that the group took the place of another one, and replacedAt when that was.
	replaced   string
	replacedAt time.Time
	// imitations are the devices that no scan looks at, as what they hold is a user's, and that show the
	// group's UUID: each with what it lies on.
	imitations []string
}

// Refusal says why a group that is there is not used. The zero value is that of a group that is.
type Refusal struct {
	// Type is that of the condition, and Message the condition's.
	Type, Message string
	// Devices are the UUIDs of the physical volumes that it is about. They are for lvmd's log alone: with
	// them, a program that can write to any disk can forge one of the group's.
	Devices string
}

// groupHealth is whether LVM and the disks do what they are asked.
type groupHealth struct {
	// unresponsive is when LVM stopped answering for this group, or zero.
	unresponsive time.Time
	// failing is when a disk last failed a command of ours, or zero since one
	// went well.
	failing time.Time
	// suspect is set when a command of ours failed, until devices that it may
	// have left in the middle of a change are repaired.
	suspect bool
}

// freeSpace is what is free in the group, and what of it is reserved for operations that LVM
// has not carried out yet.
type freeSpace struct {
	// metadata is the metadata as last read; the zero value where it cannot be.
	metadata ondisk.Metadata
	// allocatable is how many extents LVM could give now.
	allocatable int64
	// fragments is in how many segments a volume of all free extents would lie,
	// at most.
	fragments int64
	// creating and expanding are extents reserved for creations and expansions; reservedText
	// is what they may take of the metadata, in bytes.
	creating, expanding, reservedText int64
	// creations counts the volumes of creations that were admitted and not carried out yet.
	creations int64
	// placed groups have free, what is free on each device, and plans, what is
	// reserved of it, by volume: see placement.go.
	placed bool
	free   []layout.Free
	plans  map[*Volume]plan
}

// zeroedSpace is what is known to hold zeroes of what is free in the group.
type zeroedSpace struct {
	zeroes zeroed.Map
	// accounted is set when the change under way said what it took.
	accounted bool
	// forgotten counts how often all that was known of it was forgotten: what was
	// read of the group before says nothing of it afterwards.
	forgotten int
	// chunks counts those of the group's tombstones that were chosen to be wiped.
	chunks int64
}

// newGroup is a group that has not been scanned yet.
func newGroup(m *model, name string) *Group {
	return &Group{
		m:           m,
		name:        name,
		groupScan:   groupScan{exists: map[string]bool{}, extensions: map[string]bool{}, info: lvm.Group{ExtentSize: 1}},
		freeSpace:   freeSpace{plans: map[*Volume]plan{}},
		zeroedSpace: zeroedSpace{zeroes: zeroed.Map{}},
	}
}

// Name is the group's. It needs no lock.
func (g *Group) Name() string { return g.name }

// canFree reports whether volumes of the group can be wiped and removed. While a
// device is missing they must not be: LVM would remove those that lie
// elsewhere, and from then on refuse the device when it comes back, until an
// administrator restores it.
func (g *Group) canFree() bool {
	return g.present && !g.stale && g.unresponsive.IsZero() && g.info.MissingDevices == 0
}

// isUsable reports whether the group is there with all of its devices.
func (g *groupScan) isUsable() bool { return g.present && g.info.MissingDevices == 0 }

// responding is an error while LVM does not answer for the group.
func (g *Group) responding() error {
	if g.unresponsive.IsZero() {
		return nil
	}
	return apierror.NotResponding("LVM has not answered for volume group %q since %s", g.name, g.unresponsive.UTC().Format(time.RFC3339))
}

// Responding is an error, apierror.NotResponding, while LVM does not answer for a group; nil stands
// for all groups.
func (m *Inventory) Responding(g *Group) error {
	m.lock()
	defer m.unlock()
	if g != nil {
		return g.responding()
	}
	for _, g := range m.groups {
		if err := g.responding(); err != nil {
			return err
		}
	}
	return nil
}

// SetUnresponsive notes that LVM does not answer for a group. It returns false if that was known.
func (g *Group) SetUnresponsive() bool {
	m := g.m
	m.lock()
	defer m.unlock()
	g.stale = true
	if !g.unresponsive.IsZero() {
		return false
	}
	g.unresponsive = time.Now()
	m.publish(g)
	return true
}

// SetStale notes that a group may have changed more than is known, so that it is scanned.
func (g *Group) SetStale() {
	m := g.m
	m.lock()
	defer m.unlock()
	g.stale = true
}

// SetResponding notes that LVM answers for a group again. It returns true if it does for all.
func (g *Group) SetResponding() (all bool) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.unresponsive = time.Time{}
	m.publish(g)
	for _, other := range m.groups {
		if !other.unresponsive.IsZero() {
			return false
		}
	}
	return true
}

// SetSuspect notes whether a command of ours may have left a group's devices in the middle of
// a change.
func (g *Group) SetSuspect(suspect bool) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.suspect = suspect
}

// NoteDisks notes how a command that changes a group ended, or the making of a volume, as far
// as that says something of the group's disks: one that can be read and takes no writes shows in
// nothing else.
func (g *Group) NoteDisks(err error) {
	m := g.m
	m.lock()
	defer m.unlock()
	before := g.failing
	switch {
	case err == nil:
		g.failing = time.Time{}
	case errors.Is(err, lvm.ErrDeviceMissing), errors.Is(err, unix.EIO):
		g.failing = time.Now()
	}
	if g.failing.IsZero() != before.IsZero() {
		m.publish(g)
	}
}

// Expire clears what NoteDisks recorded longer ago than failing, and SetReplaced longer ago than
// replaced: only a write can show whether a disk takes writes again, and none is made for that alone.
func (g *Group) Expire(failing, replaced time.Duration) {
	m := g.m
	m.lock()
	defer m.unlock()
	if !g.failing.IsZero() && time.Since(g.failing) > failing {
		g.failing = time.Time{}
		m.publish(g)
	}
	if g.replaced != "" && time.Since(g.replacedAt) > replaced {
		g.replaced = ""
		m.publish(g)
	}
}

// SetReplaced records, for the class' conditions, that a group takes the place of the one that it is
// known by, and forgets what that is.
func SetReplaced(g *Group, message string) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.pinned, g.replaced, g.replacedAt = lvm.Identity{}, message, time.Now()
	m.warn("a volume group takes the place of another one", "group", g.name, "message", message)
	m.publish(g)
}

// SetImitations replaces the devices that are not looked at and show the group's UUID.
func SetImitations(g *Group, found []string) {
	m := g.m
	m.lock()
	defer m.unlock()
	if slices.Equal(g.imitations, found) {
		return
	}
	if g.imitations = found; len(found) > 0 {
		m.warn("what a user's data shows is not taken for the volume group", "group", g.name, "devices", examples(found))
	}
	m.publish(g)
}

// SetAbsence replaces the reason why lvmd has not made a group yet.
func (g *Group) SetAbsence(why string) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.absence = why
	m.publish(g)
}

// Known is the inventory's view of a group at one moment.
type Known struct {
	// Pinned identifies the group that is taken; the zero value takes any.
	Pinned lvm.Identity
	// Scanned has the last scan without volumes, or nil while LVM does not know the group.
	Scanned *lvm.Group
	// Seqno has the sequence number as last read.
	Seqno uint64
	// WasThere is true once the group was there since lvmd started, and Suspect while SetSuspect says so.
	WasThere, Suspect bool
	// PoolsDue is true when missing thin pools must be made now.
	PoolsDue bool
}

// Known returns the inventory's view of a group.
func (g *Group) Known() Known {
	m := g.m
	m.lock()
	defer m.unlock()
	k := Known{Pinned: g.pinned, Seqno: g.metadata.Seqno, WasThere: g.wasThere, Suspect: g.suspect}
	if g.present {
		info := g.info
		k.Scanned, k.PoolsDue = &info, !g.poolsDue.IsZero() && time.Now().After(g.poolsDue)
	}
	return k
}

// Remembered is what lasts of a group's zeroed space over a restart of lvmd.
type Remembered struct {
	UUID  string
	Seqno uint64
	// Zeroed are the edges of zeroed stretches, by device: see zeroed.Map.Edges.
	Zeroed map[string][]int64
}

// Remember is what to keep of a group; ok is false when nothing certain is known.
func (g *Group) Remember() (r Remembered, ok bool) {
	m := g.m
	m.lock()
	defer m.unlock()
	return Remembered{UUID: g.info.UUID, Seqno: g.metadata.Seqno, Zeroed: g.zeroes.Edges()}, g.present && !g.stale
}

// forgetZeroed forgets what is known to hold zeroes in a group that was changed by another
// program: that may have used any of its space and given it back, and moved wiped volumes
// away from where they were.
func (m *model) forgetZeroed(g *Group) {
	g.zeroes = zeroed.Map{}
	g.forgotten++
	for _, v := range m.volumes {
		if v.group == g {
			v.segmentsFreed = nil
		}
	}
}

// taken accounts for what a change gave to a volume, from the given offset of
// it, and returns the stretches of it that are not known to hold zeroes. err is
// why segments are not known: then nothing is known to.
func (g *zeroedSpace) taken(segments []lvm.Segment, from, size int64, err error) zeroed.Set {
	g.accounted = true
	if err != nil {
		g.zeroes = zeroed.Map{}
		return zeroed.Set{}.Plus(zeroed.Span{From: from, To: size})
	}
	return g.zeroes.Allocate(segments, from)
}
