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

// Group is a volume group.
type Group struct {
	m    *model
	name string
	// absence completes the message that the group does not exist: why lvmd has not made it yet. It
	// is empty for a group that lvmd does not make.
	absence string
	groupIdentity
	groupScan
	groupHealth
	freeSpace
	zeroedSpace
	// pools are those of classes and of our volumes, by name. poolsDue is when to make the missing
	// ones, or zero.
	pools    map[string]*Pool
	poolsDue time.Time
}

// groupScan is the group as LVM's metadata describes it.
type groupScan struct {
	// present is false while LVM does not know the group.
	present bool
	// info is the group as last scanned, without its volumes.
	info lvm.Group
	// exists names all logical volumes of the group, ours or not.
	exists map[string]bool
	// extensions names the logical volumes that hold the new extents of expansions.
	extensions map[string]bool
	// leftAlone has the reasons why logical volumes with tags of Carve are not managed, by name.
	leftAlone map[string]string
	// waiting describes deleted volumes that wait for their dependents to go.
	waiting []string
	// hidden is the sequence number on the disks when a scan did not find the group, or zero.
	hidden uint64
	// foreign counts the segments of volumes that are not ours.
	foreign int64
	// recheck is set when a device came or went after the scan; stale when a command may have
	// changed more than was noticed; unreadable while the disks do not show the sequence number of
	// a usable group, which is then scanned at intervals; unseen while a scan could not see whether
	// a pool has one of the group's snapshots.
	scanned                            time.Time
	recheck, stale, unreadable, unseen bool
}

type groupIdentity struct {
	// pinned identifies the group in the journal; refused is why the group found is not used.
	pinned  lvm.Identity
	refused Refusal
	// wasThere is true once this run of lvmd has found the group.
	wasThere bool
	// replaced is the message that this group replaced another one, since replacedAt, or empty.
	replaced   string
	replacedAt time.Time
	// imitations are devices that show the group's UUID but hold a user's data, so that no scan
	// reads them, each with what it lies on.
	imitations []string
}

// Refusal is the reason why a group that exists is not used; the zero value means that it is used.
type Refusal struct {
	// Type and Message are those of the condition.
	Type, Message string
	// Devices are UUIDs of the physical volumes concerned. They are for lvmd's log alone: a program
	// that knows them and can write to any disk can forge one of the group's.
	Devices string
}

type groupHealth struct {
	// unresponsive is when LVM stopped answering for the group, or zero.
	unresponsive time.Time
	// failing is when a disk last failed a command of ours, or zero since one succeeded.
	failing time.Time
	// refusing names the tombstones whose disk refuses the writes of their wipe.
	refusing map[string]bool
	// suspect is set after a failed command, until the devices that it may have left inconsistent
	// are repaired.
	suspect bool
}

// freeSpace is the group's free space, and the reservations of operations that LVM has yet to carry
// out.
type freeSpace struct {
	// metadata is the zero value if it cannot be read.
	metadata ondisk.Metadata
	// allocatable counts the extents that LVM could give now.
	allocatable int64
	// fragments bounds the segments of a volume of all free extents.
	fragments int64
	// creating and expanding are in extents; reservedText is in bytes of the metadata.
	creating, expanding, reservedText int64
	// creations counts volumes that were admitted but not created yet.
	creations int64
	// free is by device, and plans has the reservations of it; both are for placed groups only, see
	// placement.go.
	placed bool
	free   []layout.Free
	plans  map[*Volume]plan
}

// zeroedSpace is the free space that is known to hold zeroes.
type zeroedSpace struct {
	zeroes zeroed.Map
	// accounted is set once the change under way has reported the extents that it took.
	accounted bool
	// forgotten counts how often zeroes was reset: what was read of the group before is then void.
	forgotten int
	// chunks counts the steps of wipes in the group.
	chunks int64
}

func newGroup(m *model, name string) *Group {
	return &Group{
		m:           m,
		name:        name,
		groupScan:   groupScan{exists: map[string]bool{}, extensions: map[string]bool{}, info: lvm.Group{ExtentSize: 1}},
		groupHealth: groupHealth{refusing: map[string]bool{}},
		freeSpace:   freeSpace{plans: map[*Volume]plan{}},
		zeroedSpace: zeroedSpace{zeroes: zeroed.Map{}},
	}
}

// Name returns the group's name, without the lock.
func (g *Group) Name() string { return g.name }

// canFree reports whether the group's volumes can be wiped and removed. With a device missing they
// must not be: LVM would remove those on other devices, and then refuse the missing one when it
// comes back, until an administrator restores it.
func (g *Group) canFree() bool {
	return g.present && !g.stale && g.unresponsive.IsZero() && g.info.MissingDevices == 0
}

func (g *groupScan) isUsable() bool { return g.present && g.info.MissingDevices == 0 }

func (g *Group) responding() error {
	if g.unresponsive.IsZero() {
		return nil
	}
	return apierror.NotResponding("LVM has not answered for volume group %q since %s", g.name, g.unresponsive.UTC().Format(time.RFC3339))
}

// Responding returns an apierror.NotResponding while LVM does not answer for a group; nil means any
// group.
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

// SetUnresponsive marks LVM as not answering for the group, and reports whether that is new.
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

// SetStale requests a scan of a group that may have changed more than is known.
func (g *Group) SetStale() {
	m := g.m
	m.lock()
	defer m.unlock()
	g.stale = true
}

// SetResponding marks LVM as answering for the group. all is true if it answers for all groups.
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

// SetSuspect sets whether a command may have left the group's devices inconsistent.
func (g *Group) SetSuspect(suspect bool) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.suspect = suspect
}

// NoteDisks records how a command that changes the group, or the creation of a volume, ended. Only
// this reveals a disk that can be read but not written.
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

// Expire clears errors of NoteDisks older than failing, and messages of SetReplaced older than
// replaced. Only a write can show whether a disk recovered, and lvmd makes none for that alone.
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

// SetReplaced records that the group replaced the pinned one, and unpins that.
func SetReplaced(g *Group, message string) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.pinned, g.replaced, g.replacedAt = lvm.Identity{}, message, time.Now()
	m.warn("a volume group takes the place of another one", "group", g.name, "message", message)
	m.publish(g)
}

// SetImitations replaces the devices that no scan reads although they show the group's UUID.
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

// SetAbsence sets the reason why lvmd has not made the group yet.
func (g *Group) SetAbsence(why string) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.absence = why
	m.publish(g)
}

// Known is the inventory's view of a group at one moment.
type Known struct {
	// Pinned is the zero value if any group is accepted.
	Pinned lvm.Identity
	// Scanned lacks the volumes; it is nil while LVM does not know the group.
	Scanned *lvm.Group
	Seqno   uint64
	// WasThere is true once this run of lvmd has found the group.
	WasThere, Suspect bool
	// PoolsDue is true if missing thin pools must be made now.
	PoolsDue bool
}

// Known returns the inventory's view of the group.
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

// Remembered is what the journal keeps of a group's zeroed space.
type Remembered struct {
	UUID  string
	Seqno uint64
	// Zeroed has the edges of zeroed stretches, by device, see zeroed.Map.Edges.
	Zeroed map[string][]int64
}

// Remember returns the group's zeroed space; ok is false if it may be outdated.
func (g *Group) Remember() (r Remembered, ok bool) {
	m := g.m
	m.lock()
	defer m.unlock()
	return Remembered{UUID: g.info.UUID, Seqno: g.metadata.Seqno, Zeroed: g.zeroes.Edges()}, g.present && !g.stale
}

// forgetZeroed resets the zeroed space after a change by another program, which may have used and
// freed any extents, and moved wiped volumes.
func (m *model) forgetZeroed(g *Group) {
	g.zeroes = zeroed.Map{}
	g.forgotten++
	for _, v := range m.volumes {
		if v.group == g {
			v.segmentsFreed = nil
		}
	}
}

// taken removes a volume's new segments, from the given offset on, from the zeroed space. It
// returns the stretches of the volume that may not hold zeroes: all, if err says that segments are
// unknown; that resets the zeroed space.
func (g *zeroedSpace) taken(segments []lvm.Segment, from, size int64, err error) zeroed.Set {
	g.accounted = true
	if err != nil {
		g.zeroes = zeroed.Map{}
		return zeroed.Set{}.Plus(zeroed.Span{From: from, To: size})
	}
	return g.zeroes.Allocate(segments, from)
}
