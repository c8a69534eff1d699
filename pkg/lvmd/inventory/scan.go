package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Scan is the state of a group by LVM, the disks and the kernel.
type Scan struct {
	// Group is nil when LVM does not know the group.
	Group *lvm.Group
	// Refused says why a group of the name is not used.
	Refused Refusal
	// Devices has our volumes' devices, by name.
	Devices map[string]lvm.Device
	// Metadata is the zero value if it cannot be read, with the error in Unreadable. It may be set
	// although LVM does not know the group.
	Metadata   ondisk.Metadata
	Unreadable error
	// Where is set for groups with thin pools.
	Where ondisk.Placement
}

// Diff has the news of a scan that need action.
type Diff struct {
	// Vanished has the ids of volumes that no longer exist.
	Vanished []string
	// Adopted were unknown, or not known to be complete.
	Adopted []*Volume
	// Undone are new tombstones, whose creation no operation continues.
	Undone []spec.Record
	// Resumed are interrupted copies to continue.
	Resumed []Admission
	// Pinned is true if the group is known by another UUID, or other physical volumes, from now on.
	Pinned bool
	// WentBack is true if the group was accepted with older metadata than before.
	WentBack bool
	// Closed are devices of vanished volumes, for the caller to close.
	Closed []blockdev.Handle

	changed []*Volume
}

// BeginScan is called before a scan. What comes or goes during the scan needs another one, see
// Recheck.
func BeginScan(g *Group) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.recheck = false
}

// ApplyScan applies a scan and, before it, the effect of the command that it follows, unless nil.
// The caller has the group's slot, and makes the result durable.
func (g *Group) ApplyScan(scan Scan, after Effect) Diff {
	m := g.m
	m.lock()
	defer m.unlock()
	var d Diff
	if after != nil {
		m.forgetZeroed(g) // The group changed by more than the effect.
		d.changed = after.apply(m)
	}
	g.stale, g.scanned = false, time.Now()
	if scan.Group == nil {
		m.applyMissing(g, scan.Refused, &d)
		g.hidden = scan.Metadata.Seqno
	} else {
		m.applyGroup(g, &scan, &d)
	}
	if unreadable := scan.Unreadable != nil && g.isUsable(); unreadable != g.unreadable {
		g.unreadable = unreadable
		m.warn("whether others change the group can be read from its disks", "group", g.name, "can", !unreadable, "error", scan.Unreadable)
	}
	m.publish(g, d.changed...)
	return d
}

func (m *model) applyGroup(g *Group, scan *Scan, d *Diff) {
	found := scan.Group
	g.refused = Refusal{}
	if now := found.Identity(); !g.pinned.Equal(now) {
		g.pinned, d.Pinned = now, true
	}
	d.WentBack = outdated(g, found) != ""
	if found.UUID != g.info.UUID || found.Seqno != g.metadata.Seqno {
		m.forgetZeroed(g)
	}
	isNew := !g.wasThere || found.UUID != g.info.UUID
	g.present, g.wasThere = true, true
	g.info = *found
	g.info.Volumes = nil
	g.allocatable, g.fragments = found.Allocatable(), found.FreeSegments
	g.free = found.Free()
	g.metadata = scan.Metadata
	g.metadata.Seqno = found.Seqno
	g.mergePools(found, scan.Where)
	if isNew && g.poolsDue.IsZero() && lacksPool(g) {
		g.poolsDue = time.Now() // The start makes the pools of groups that it finds.
	}
	g.exists = make(map[string]bool, len(found.Volumes))
	g.foreign = 0
	before := g.leftAlone
	g.leaveLaterAlone(found, d)
	m.deleteMarked(g, found, d)
	halfMade, dependents := halfMade(found), found.Dependents()
	g.waiting, g.unseen = nil, false
	for i := range found.Volumes {
		lv := &found.Volumes[i]
		g.exists[lv.Name] = true
		v := m.volumes[lv.Name]
		if v == nil && !g.extensions[lv.Name] {
			v = m.adopt(g, lv, halfMade[lv.Name])
			d.noteAdopted(v)
		}
		if v == nil {
			g.foreign += lv.Segments
			continue
		}
		d.apply(g, v, lv, scan, halfMade[lv.Name], dependents[lv.Name])
	}
	slices.Sort(g.waiting)
	for name, why := range g.leftAlone {
		if before[name] != why {
			m.error("a volume has tags of Carve and is left alone", "volume", name, "group", g.name, "reason", why)
		}
	}
	m.markPlaced(g)
	d.dropVanished(g)
}

func (d *Diff) noteAdopted(v *Volume) {
	if v == nil {
		return
	}
	if v.rec.Phase == spec.Deleting {
		d.Undone = append(d.Undone, v.rec)
	}
	if v.lifecycle.state == Ready {
		d.Adopted = append(d.Adopted, v)
	}
	d.changed = append(d.changed, v)
}

func (d *Diff) apply(g *Group, v *Volume, lv *lvm.Volume, scan *Scan, halfMade bool, dependents []lvm.Dependent) {
	if v.update(lv, scan.Devices, dependents) {
		d.changed = append(d.changed, v)
	}
	if v.rec.Phase == spec.Deleting && len(v.dependents) > 0 {
		g.waiting = append(g.waiting, v.rec.ID+": "+v.dependents.describe(g.name))
	}
	unmade := scan.Group.Unmade
	v.halfMade, v.unmade = halfMade, slices.Contains(unmade.Names, lv.Name)
	v.unseen = unmade.Unknown && v.rec.Ident.Snapshot && v.isMaking()
	g.m.advance(v, lv, d)
	if v.rec.Phase == spec.Unfinished && !v.inspected {
		d.Adopted = append(d.Adopted, v)
	}
	v.inspected = !v.unseen
	g.unseen = g.unseen || v.unseen
}

func (d *Diff) dropVanished(g *Group) {
	m := g.m
	for id, v := range m.volumes {
		if v.group != g || g.exists[id] || v.op != nil {
			continue
		}
		if v.rec.Phase != spec.Creating && v.rec.Phase != spec.Deleting {
			m.warn("volume is gone: it was removed by another program", "volume", id, "name", v.rec.Ident.Name)
		}
		if v.handle != nil {
			d.Closed = append(d.Closed, v.handle)
		}
		m.drop(v)
		d.Vanished = append(d.Vanished, id)
		d.changed = append(d.changed, v)
	}
}

// fewestVanished is the number of volumes that must vanish together for the group to be refused. An
// administrator may remove a group's only volume, unless the metadata proves otherwise.
const fewestVanished = 2

// Implausible says why the group that LVM found cannot be the known one: its metadata is older, or
// it lost acknowledged volumes in a way that no administrator's removal explains. The message is
// the end of a sentence.
func (g *Group) Implausible(found *lvm.Group) Refusal {
	m := g.m
	m.lock()
	defer m.unlock()
	if why := outdated(g, found); why != "" {
		return Refusal{Type: conditions.VolumeGroupOutdated, Message: why}
	}
	if why, devices := m.vanished(g, found); why != "" {
		return Refusal{Type: conditions.VolumeGroupReplaced, Message: why, Devices: strings.Join(devices, ", ")}
	}
	return Refusal{}
}

// outdated returns why the metadata is older than known, or "". LVM raises the sequence number with
// each change.
func outdated(g *Group, found *lvm.Group) string {
	if found.UUID != g.info.UUID || found.Seqno >= g.metadata.Seqno {
		return ""
	}
	return fmt.Sprintf("its metadata is older than it was (sequence number %d, was %d)", found.Seqno, g.metadata.Seqno)
}

// vanished returns why missing volumes cannot have been removed, or "". Nothing on the disks proves
// a removal. An unchanged sequence number, which a removal raises, disproves it, and so do further
// disks: a removal may take disks away with their volumes, but brings none. further has the UUIDs
// that the reason is about.
func (m *model) vanished(g *Group, found *lvm.Group) (why string, further []string) {
	exists := make(map[string]bool, len(found.Volumes))
	for i := range found.Volumes {
		exists[found.Volumes[i].Name] = true
	}
	var gone []string
	left := 0
	for id, v := range m.volumes {
		switch {
		case v.group != g || v.rec.Phase == spec.Creating || v.rec.Phase == spec.Deleting:
		case exists[id]:
			left++
		default:
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	further = slices.DeleteFunc(found.Identity().Devices, func(uuid string) bool { return slices.Contains(g.pinned.Devices, uuid) })
	switch {
	case len(gone) == 0:
		return "", nil
	case found.UUID == g.info.UUID && found.Seqno == g.metadata.Seqno:
		return fmt.Sprintf("volume %s is not in it any more, and its metadata has the sequence number that it had (%d), which each removal raises", gone[0], found.Seqno), nil
	case left > 0:
		return "", nil
	case len(gone) >= fewestVanished:
		return fmt.Sprintf("none of the %d volumes that it had, such as %s, is in it any more", len(gone), gone[0]), nil
	case len(g.pinned.Devices) > 0 && len(further) > 0:
		return fmt.Sprintf("its only volume, %s, is not in it any more, and it has disks that it did not have (%s)", gone[0], strings.Join(found.PathsOf(further), ", ")), further
	}
	return "", nil
}

// leaveLaterAlone forgets the volumes of later versions. The journal keeps their records for a
// version that can read them.
func (g *Group) leaveLaterAlone(found *lvm.Group, d *Diff) {
	m := g.m
	g.leftAlone = map[string]string{}
	for i := range found.Volumes {
		lv := &found.Volumes[i]
		later := spec.LaterMarker(lv.Tags)
		v := m.volumes[lv.Name]
		if later == "" || v != nil && v.op != nil {
			continue
		}
		g.leftAlone[lv.Name] = fmt.Sprintf("its tags are those of a later version (%s, this one knows %s)", later, spec.TagMarker)
		if v == nil {
			continue
		}
		if v.handle != nil {
			d.Closed = append(d.Closed, v.handle)
		}
		m.drop(v)
		d.changed = append(d.changed, v)
	}
}

func (g *groupScan) examplesLeftAlone() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(g.leftAlone)) {
		all = append(all, name+": "+g.leftAlone[name])
	}
	return examples(all)
}

func examples(all []string) string {
	const most = 3
	if len(all) > most {
		all = append(slices.Clone(all[:most]), "and others")
	}
	return strings.Join(all, "; ")
}

func (m *model) advance(v *Volume, lv *lvm.Volume, d *Diff) {
	if v.lifecycle.state == Deleted && isMarked(lv) {
		m.enter(v, Marked)
		v.failures, v.retryAt = 0, time.Time{}
	}
	if v.lifecycle.state != Interrupted {
		return
	}
	if !v.isMaking() && !v.halfMade {
		m.keepIntended(v, d)
		return
	}
	if showsIfComplete(v) {
		// It may have been handed out already: its contents decide.
		m.info("it is looked at whether a volume whose making has no end in the journal is complete", "volume", v.rec.ID, "name", v.rec.Ident.Name)
		v.rec.Tagged = false
		m.enter(v, Unfinished)
		d.changed = append(d.changed, v)
		return
	}
	if m.resumeCopy(v) {
		d.Resumed = append(d.Resumed, Admission{Volume: v, Creation: v.op, Source: m.source(v)})
		return
	}
	// lvmd ended during the creation, and never acknowledged it.
	m.info("an unfinished creation is undone", "volume", v.rec.ID, "name", v.rec.Ident.Name)
	m.markDeleted(v)
	d.Undone = append(d.Undone, v.rec)
	d.changed = append(d.changed, v)
}

// applyMissing keeps the volumes of a group that LVM no longer knows: its disks may come back.
func (m *model) applyMissing(g *Group, refused Refusal, d *Diff) {
	if g.present {
		m.warn("volume group is gone", "group", g.name)
	}
	if refused != g.refused {
		g.refused = refused
		m.warn("volume group is not taken", "group", g.name, "reason", cmp.Or(refused.Message, "it is not there"), "physicalVolumes", refused.Devices)
	}
	g.present, g.allocatable = false, 0
	for _, p := range g.pools {
		p.present, p.virtual = false, 0
	}
	for _, v := range m.volumes {
		if v.group == g && v.rec.Phase != spec.Deleting && v.op == nil {
			v.conditions = []*lvmdv1.Condition{condition(conditions.VolumeGroupMissing, "%s", cmp.Or(g.refused.Message, fmt.Sprintf("volume group %q is gone", g.name)))}
			d.changed = append(d.changed, v)
		}
	}
}

// update reports whether the volume's report changes.
func (v *Volume) update(lv *lvm.Volume, devices map[string]lvm.Device, dependents []lvm.Dependent) bool {
	if v.op != nil {
		return false // its creation sets these when it is done
	}
	extents := lv.Size / v.group.info.ExtentSize
	device, active := devices[lv.Name]
	v.dependents = dependents
	found := conditionsOf(lv, device, active || v.rec.Ident.Snapshot)
	if len(dependents) > 0 {
		found = append(found, condition(conditions.HasDependents, "the volume can be neither deleted nor grown: %s", v.dependents.describe(v.group.name)))
	}
	// Who has a device open is not reported.
	limits, limitTags := spec.LimitsFromTags(lv.Tags)
	tagged := slices.Contains(lv.Tags, spec.TagEncrypted)
	encrypted := v.rec.Encrypted || tagged // The journal may be older.
	wasProvisional := isProvisional(v)
	v.making.tag, v.making.provisional = spec.MakingTag(lv.Tags), slices.Contains(lv.Tags, spec.TagProvisional)
	same := isProvisional(v) == wasProvisional && v.rec.Encrypted == encrypted && v.extents == extents && v.limits == limits && v.device.Path == device.Path &&
		v.device.Major == device.Major && v.device.Minor == device.Minor && sameConditions(v.conditions, found)
	if lv.Pool == "" {
		v.layout, v.on = lv.Layout, lv.On
	}
	v.inspected = v.inspected && (v.device.Path != "" || device.Path == "")
	v.extents, v.segments, v.device, v.conditions = extents, lv.Segments, device, found
	v.limits, v.limitTags = limits, limitTags
	v.tagged, v.rec.Encrypted = tagged, encrypted
	v.pool = v.group.pool(lv.Pool) // A volume never changes its pool; the first scan finds it.
	return !same
}

// Recheck requests a scan of all groups, as devices may have come or gone.
func (m *Inventory) Recheck() {
	m.lock()
	defer m.unlock()
	for _, g := range m.groups {
		g.recheck = true
	}
}

// unreadableInterval is between scans of a group whose sequence number cannot be read.
const unreadableInterval = time.Minute

// Differs reports whether the group needs a scan, given its current metadata, or the error of
// reading it. poll is the interval of these calls; a group with a problem is scanned at the
// interval probe.
func (g *Group) Differs(now ondisk.Metadata, err error, poll, probe time.Duration) bool {
	m := g.m
	m.lock()
	defer m.unlock()
	switch {
	case g.waits(poll):
		return false
	case g.stale:
		return true
	case g.refused != Refusal{} && g.refused.Type != conditions.VolumeGroupForeign:
		// Another group may be away, or accepted by now.
		return g.recheck || time.Since(g.scanned) > probe
	case !g.present:
		// Scan when it may return: with a device, or when its metadata changed. Seeker covers the
		// rest.
		return g.recheck || err == nil && now.Seqno != g.hidden
	case err == nil && (now.Seqno != g.metadata.Seqno || now.Unreadable != g.metadata.Unreadable):
		return true
	case !g.isUsable():
		return g.recheck
	case (g.suspect || g.unseen) && time.Since(g.scanned) > probe:
		return true // Retry the repair, or the look at the pool.
	}
	return err != nil && (!g.unreadable || g.recheck || time.Since(g.scanned) > unreadableInterval)
}

// waits reports whether to postpone a scan. A probe scans an unresponsive group; a burst of changes
// is scanned once, at the next tick.
func (g *Group) waits(poll time.Duration) bool {
	return !g.unresponsive.IsZero() || time.Since(g.scanned) < poll/2
}

// Renumbered compares the kernel's device numbers of our volumes with the known ones. moved is true
// if a volume lost its device, or has another one. appeared may have got a device; suspended had a
// suspended one.
func (g *Group) Renumbered(numbers lvm.Numbers, poll time.Duration) (moved bool, appeared, suspended []*Volume) {
	m := g.m
	m.lock()
	defer m.unlock()
	if !g.present || g.waits(poll) {
		return false, nil, nil
	}
	for id, v := range m.volumes {
		if v.group != g || v.isBusy() || v.rec.Phase == spec.Deleting {
			continue
		}
		of := numbers.Volumes
		if v.IsEncrypted() {
			of = numbers.Encrypted
		}
		switch now, there := of[id]; {
		case v.device.Path == "" && there:
			appeared = append(appeared, v)
		case v.device.Path != "" && (!there || now != v.device.Number()):
			return true, nil, nil
		case v.device.Suspended:
			suspended = append(suspended, v)
		}
	}
	return false, appeared, suspended
}

// RAIDNames returns the ids of the group's usable RAID volumes, and the names of its thin pools'
// RAID components.
func (g *Group) RAIDNames() (names []string) {
	m := g.m
	m.lock()
	defer m.unlock()
	for id, v := range m.volumes {
		if v.group == g && v.rec.Phase == spec.Ready && v.layout.IsRAID() {
			names = append(names, id)
		}
	}
	for _, p := range g.pools {
		for name, lies := range p.components() {
			if lies.Layout.IsRAID() {
				names = append(names, name)
			}
		}
	}
	return names
}

// SetRAID sets the status of RAIDNames. The zero status clears conditions.
func (g *Group) SetRAID(found map[string]lvm.RAIDStatus) {
	m := g.m
	m.lock()
	defer m.unlock()
	var changed []*Volume
	for id, status := range found {
		if v, now := m.volumes[id], raidConditions(status); v != nil && !sameConditions(v.raid, now) {
			v.raid = now
			changed = append(changed, v)
		}
	}
	if len(changed) > 0 {
		m.publish(g, changed...)
	}
	for _, p := range g.pools {
		if now := p.raidConditions(found); !sameConditions(p.raid, now) {
			p.raid = now
			m.publish(g, p.volumes()...)
		}
	}
}
