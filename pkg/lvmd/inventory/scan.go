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

// Scan is what LVM, the disks and the kernel say of a group.
type Scan struct {
	// Group is nil when LVM does not know the group.
	Group *lvm.Group
	// Refused says why a group of the name is not taken for it.
	Refused Refusal
	// Devices are those of our volumes, by name, where they have one.
	Devices map[string]lvm.Device
	// Metadata is the zero value where it cannot be read, and Unreadable has the error. The disks of a group
	// that LVM does not know may have it.
	Metadata   ondisk.Metadata
	Unreadable error
	// Where is where everything lies, of groups with thin pools.
	Where ondisk.Placement
}

// Diff is what a scan found that was not known, as far as there is something to be done about it.
type Diff struct {
	// Vanished are the ids of volumes that exist no more.
	Vanished []string
	// Adopted are volumes that were not known, or of which it was not known that they are complete.
	Adopted []*Volume
	// Undone are volumes whose creation no operation continues; they are tombstones now.
	Undone []spec.Record
	// Resumed are volumes whose creation, by copying, is to be continued.
	Resumed []Admission
	// Pinned is true when the group was found with a UUID, or with physical volumes, that it is
	// known by from now on.
	Pinned bool
	// WentBack is true when the group's metadata is older than it was, and is accepted as it is.
	WentBack bool
	// Closed are the devices of volumes that vanished, to be closed.
	Closed []blockdev.Handle

	changed []*Volume
}

// BeginScan notes that a scan of the group begins. It may miss what comes or goes from now on, for
// which Recheck has the group scanned once more.
func BeginScan(g *Group) {
	m := g.m
	m.lock()
	defer m.unlock()
	g.recheck = false
}

// ApplyScan takes over a scan of one group, and before it the effect of the command that it
// follows, if any. The caller has the group's slot, and makes what is returned durable.
func (g *Group) ApplyScan(scan Scan, after Effect) Diff {
	m := g.m
	m.lock()
	defer m.unlock()
	var d Diff
	if after != nil {
		m.forgetZeroed(g) // More than the effect happened to the group.
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
		g.poolsDue = time.Now() // The start makes those of the groups that are there.
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

// noteAdopted notes a volume that was adopted, if any.
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

// apply takes over what a scan of a group found of a volume that is known.
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

// dropVanished drops the volumes of a group that a scan has not found.
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

// fewestVanished is of how many volumes a group is refused when all of them vanish at once. An
// administrator who removes the only volume of a group is right, unless the metadata shows otherwise.
const fewestVanished = 2

// Implausible says why a group as LVM found it cannot be what it was: its metadata is older than
// it was, or lacks volumes that were acknowledged in a way in which no administrator removes them. The
// reason begins in the middle of a sentence.
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

// outdated says why the metadata of a group is older than what is known of it, or nothing. LVM raises
// the sequence number with each change.
func outdated(g *Group, found *lvm.Group) string {
	if found.UUID != g.info.UUID || found.Seqno >= g.metadata.Seqno {
		return ""
	}
	return fmt.Sprintf("its metadata is older than it was (sequence number %d, was %d)", found.Seqno, g.metadata.Seqno)
}

// vanished says why volumes of a group may not be gone that are, or nothing. Nothing on the disks proves
// that an administrator removed them. That it was no removal is shown by the sequence number, which a removal
// raises, and by further disks, which it does not bring; it may take disks away, with what was on them. further
// are the UUIDs of those that the reason is about.
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

// leaveLaterAlone finds the volumes of later versions and forgets those that are known: the
// journal keeps their records, for the version that can read them.
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

// examplesLeftAlone names some of the volumes that are left alone, and why.
func (g *groupScan) examplesLeftAlone() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(g.leftAlone)) {
		all = append(all, name+": "+g.leftAlone[name])
	}
	return examples(all)
}

// examples joins the first of what a message is to name.
func examples(all []string) string {
	const most = 3
	if len(all) > most {
		all = append(slices.Clone(all[:most]), "and others")
	}
	return strings.Join(all, "; ")
}

// advance changes the state of a volume by what a scan says of it.
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
		// It may have been handed out already: what is on it decides.
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
	// lvmd ended in the middle of the creation, which was never acknowledged.
	m.info("an unfinished creation is undone", "volume", v.rec.ID, "name", v.rec.Ident.Name)
	m.markDeleted(v)
	d.Undone = append(d.Undone, v.rec)
	d.changed = append(d.changed, v)
}

// applyMissing is for a group that LVM does not know any more. Its volumes are kept: the disks
// may come back.
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

// update brings a known volume up to date and reports whether anything that is
// reported changed.
func (v *Volume) update(lv *lvm.Volume, devices map[string]lvm.Device, dependents []lvm.Dependent) bool {
	if v.op != nil {
		return false // its creation says what it is when it is done
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
	v.pool = v.group.pool(lv.Pool) // It is always the same one; the first scan finds it.
	return !same
}

// Recheck has all groups scanned of which devices may have come or gone.
func (m *Inventory) Recheck() {
	m.lock()
	defer m.unlock()
	for _, g := range m.groups {
		g.recheck = true
	}
}

// unreadableInterval is how often a group is scanned whose sequence number cannot
// be read.
const unreadableInterval = time.Minute

// Differs reports whether a group's metadata, as it is now or cannot be read now for err, says
// something else than is known. poll is how often that is asked, and probe how often a
// group is scanned that is not as it should be.
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
		// It comes back with a device, by its name, or when LVM shows it again; Seeker looks for all else.
		return g.recheck || err == nil && now.Seqno != g.hidden
	case err == nil && (now.Seqno != g.metadata.Seqno || now.Unreadable != g.metadata.Unreadable):
		return true
	case !g.isUsable():
		return g.recheck
	case (g.suspect || g.unseen) && time.Since(g.scanned) > probe:
		return true // what could not be repaired, or seen, is tried again
	}
	return err != nil && (!g.unreadable || g.recheck || time.Since(g.scanned) > unreadableInterval)
}

// waits reports whether a group is not to be scanned now: one that does not respond is
// scanned by its probe, and bursts of changes are scanned once, at the next tick.
func (g *Group) waits(poll time.Duration) bool {
	return !g.unresponsive.IsZero() || time.Since(g.scanned) < poll/2
}

// Renumbered compares the numbers of our volumes' devices in a group with those that are known:
// moved is true when a volume has lost its device, or has another one. appeared are the volumes
// that had none and may have one now, and suspended those whose device was suspended.
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

// RAIDNames returns the ids of a group's RAID volumes that can be used, and the names of its thin pools'
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

// SetRAID takes over the status of RAIDNames. The zero status clears conditions.
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
