package inventory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// deleteMarked turns known volumes that LVM shows as deleted into tombstones: the journal is older
// than LVM's metadata. That frees their names for volumes that the journal does not have.
func (m *model) deleteMarked(g *Group, found *lvm.Group, d *Diff) {
	for i := range found.Volumes {
		v := m.volumes[found.Volumes[i].Name]
		if v == nil || v.group != g || v.isBusy() || v.rec.Phase == spec.Deleting || !isMarked(&found.Volumes[i]) {
			continue
		}
		m.warn("a volume is deleted, by its tags; the journal is older", "volume", v.rec.ID, "name", v.rec.Ident.Name)
		if v.lifecycle.state != Interrupted {
			m.enter(v, Deleting)
		}
		m.markDeleted(v)
		d.Undone = append(d.Undone, v.rec)
		d.changed = append(d.changed, v)
	}
}

// keepIntended keeps a volume that is complete by LVM, but not by the journal. Either lvmd ended
// just before the acknowledgement, or the journal is older than LVM's metadata, and the volume may
// have been in use since.
func (m *model) keepIntended(v *Volume, d *Diff) {
	to := Ready
	if !v.rec.Tagged && !v.rec.Ident.Snapshot {
		// An earlier version made it, which set no tag: check its contents.
		to = Unfinished
	}
	m.warn("a volume whose making has no end in the journal may have been handed out, by its tags; it is kept",
		"volume", v.rec.ID, "name", v.rec.Ident.Name, "state", string(to))
	v.rec.Tagged, v.rec.Copied, v.rec.Source = false, 0, blockdev.WriteMark{}
	m.enter(v, to)
	if to == Ready {
		d.Adopted = append(d.Adopted, v)
	}
	d.changed = append(d.changed, v)
}

// adopt adds an unknown volume as its tags describe it. It returns nil for one that is not ours.
func (m *model) adopt(g *Group, lv *lvm.Volume, halfMade bool) *Volume {
	if !spec.AreOurs(lv.Tags) || !spec.VolumeID.MatchString(lv.Name) && !spec.SnapshotID.MatchString(lv.Name) {
		return nil
	}
	ident, err := spec.FromTags(lv.Tags)
	if err != nil {
		g.leftAlone[lv.Name] = err.Error()
		return nil
	}
	if other := m.names[ident.Key()]; other != nil && !isMarked(lv) {
		g.leftAlone[lv.Name] = fmt.Sprintf("%s has its name, %q", other.rec.ID, ident.Name)
		return nil
	}
	created := lv.Created
	if created.IsZero() {
		// Of unknown age, it counts as new, so as not to be an orphan at once.
		created = time.Now().UTC().Truncate(time.Second)
	}
	v := &Volume{
		group:      g,
		volumeScan: volumeScan{extents: lv.Size / g.info.ExtentSize, segments: lv.Segments},
		recorded:   recorded{spec.Record{ID: lv.Name, Group: g.name, Ident: ident, Created: created}},
	}
	v.rec.Encrypted = slices.Contains(lv.Tags, spec.TagEncrypted)
	v.rec.AdoptedFrom = spec.AdoptedFrom(lv.Tags)
	state := Ready
	switch {
	case isMarked(lv):
		state = Deleted
	case spec.MakingTag(lv.Tags) != "" && !v.rec.Encrypted || isExtension(lv.Tags) || halfMade:
		// Its progress is unknown.
		state = Interrupted
	}
	m.warn("volume was not in the journal; adopted from its tags", "volume", lv.Name, "name", ident.Name, "state", string(state))
	m.add(v, state)
	return v
}

func isMarked(lv *lvm.Volume) bool { return slices.Contains(lv.Tags, spec.TagDeleted) }

// halfMade names our volumes that need no wipe, since they were never handed out: extensions, and
// RAID volumes whose lvcreate was killed before it had cleared RAID's metadata. Until then LVM
// shows the metadata's volumes (_rmeta_) like any others, and never activates the RAID volume,
// which therefore has no device to wipe. LVM removes it with its components.
//
// Neither sign suffices: an administrator can forbid any activation, and the metadata of a new
// image of a volume in use is visible, too.
func halfMade(g *lvm.Group) map[string]bool {
	names := map[string]bool{}
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		if isExtension(lv.Tags) {
			names[lv.Name] = true
		}
		if spec.AreOurs(lv.Tags) && lv.Layout.IsRAID() && lv.Attr.SkipActivation &&
			slices.ContainsFunc(g.Volumes, func(component lvm.Volume) bool { return strings.HasPrefix(component.Name, lv.Name+"_rmeta_") }) {
			names[lv.Name] = true
		}
	}
	return names
}

// Claimed is a volume whose completion the journal did not record.
type Claimed struct {
	// Record is the journal's.
	Record spec.Record
	// Path is that of the volume's device, or empty.
	Path string
	// Making is true if the volume may never have been handed out, by its tag. Whole is false if it
	// is smaller than requested, or not in its pool yet; Unseen is true if the latter is unknown.
	Making, Whole, Unseen, Thin bool
}

// ClaimUnrecorded claims a volume of Diff.Adopted until SetRecord, MarkDeleted or Release, so that
// no deletion writes its record concurrently. ok is false if an operation has the volume: the next
// start adopts the result.
func (v *Volume) ClaimUnrecorded() (c Claimed, ok bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	if s := v.lifecycle.state; s != Ready && s != Unfinished {
		return Claimed{}, false
	}
	m.enter(v, Checking)
	return Claimed{Record: v.rec, Path: v.device.Path, Making: v.isMaking(), Whole: !v.tooSmall() && !v.unmade, Unseen: v.unseen, Thin: v.pool != nil}, true
}
