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

// deleteMarked makes tombstones of known volumes that LVM shows as deleted: the journal is older
// than LVM's metadata. Their names are free, for volumes that it does not know.
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

// keepIntended keeps a volume that the journal has as being made, and LVM does not: lvmd ended just
// before it acknowledged the volume, or the journal is older than LVM's metadata, and the volume may
// have been in use since.
func (m *model) keepIntended(v *Volume, d *Diff) {
	to := Ready
	if !v.rec.Tagged && !v.rec.Ident.Snapshot {
		// A version made it that tagged none. What is on it says more.
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

// adopt makes a volume of ours that was not known known, as its tags describe it. It returns nil
// for volumes that are not ours.
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
		// Its age is not known: it counts as new, so that it is no orphan at once.
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
		// How far it came is not known.
		state = Interrupted
	}
	m.warn("volume was not in the journal; adopted from its tags", "volume", lv.Name, "name", ident.Name, "state", string(state))
	m.add(v, state)
	return v
}

// isMarked reports whether a logical volume is that of a deleted volume.
func isMarked(lv *lvm.Volume) bool { return slices.Contains(lv.Tags, spec.TagDeleted) }

// halfMade names the volumes of ours that need no wipe, because they were never handed out:
// extensions, and the RAID volumes that an lvcreate left when it was killed
// before it had cleared what becomes RAID's own bookkeeping. Until then that lies
// bare, in volumes that are shown like any other, and the volume itself is never activated:
// it was never written to or read from, and it has no device to
// wipe. LVM removes it, with its components, like any other.
//
// Either sign alone is not enough: an administrator can forbid the activation of
// any volume, and the bookkeeping of a new image of one in use lies bare, too.
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

// Claimed is what is known of a volume whose end of making the journal did not have.
type Claimed struct {
	// Record is what the journal keeps.
	Record spec.Record
	// Path is that of the volume's device, or empty.
	Path string
	// Making is true of a volume with the tag of what may never have been handed out, and Whole is
	// false if something is missing of it by its size, or it is not in its pool yet. Unseen is true when the latter
	// is not known. Thin is true of a thin volume.
	Making, Whole, Unseen, Thin bool
}

// ClaimUnrecorded claims a volume of Diff.Adopted until SetRecord, MarkDeleted or Release, so that no
// deletion writes its record meanwhile. It returns false if an operation has the volume: the next
// start adopts what that leaves.
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
