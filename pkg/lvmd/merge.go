package lvmd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
)

// news is what a scan told that the model did not know.
type news struct {
	// changed are the volumes whose report changed.
	changed []*volume
	// vanished are the ids of volumes that exist no more.
	vanished []string
	// adopted are volumes that were not known.
	adopted []*volume
	// undone are volumes whose creation nobody is carrying on; they are
	// tombstones now.
	undone []record
	// pin is a group that was seen with a UUID that the journal does not have, or nil.
	pin *group
}

// devicesOf asks the kernel for the devices of our volumes.
func (s *Service) devicesOf(found []lvm.Group) map[string]lvm.Device {
	devices := map[string]lvm.Device{}
	for _, g := range found {
		for _, lv := range g.Volumes {
			if !isOurs(lv.Tags) {
				continue
			}
			if d, err := s.deviceOf(g.Name, lv.Name, tellEncrypted(lv.Tags)); err == nil {
				devices[lv.Name] = d
			} else if !errors.Is(err, lvm.ErrNotFound) {
				s.log.Warn("volume's device cannot be asked for", "volume", lv.Name, "error", err)
			}
		}
	}
	return devices
}

// metadataOf reads the state of the groups' metadata, where it can be read.
func (s *Service) metadataOf(found []lvm.Group) map[string]lvm.Metadata {
	metadata := map[string]lvm.Metadata{}
	for _, g := range found {
		if m, err := s.lvm.Metadata(g.Name); err == nil {
			metadata[g.Name] = m
		}
	}
	return metadata
}

// merge takes a scan of one group over into the model. The caller has the
// group's turn, holds the model's lock, publishes what changed, and settles
// the rest.
func (s *Service) merge(g *group, found []lvm.Group, devices map[string]lvm.Device, metadata map[string]lvm.Metadata) news {
	var n news
	g.stale, g.recheck, g.scanned = false, false, time.Now()
	i := slices.IndexFunc(found, func(f lvm.Group) bool { return f.Name == g.name })
	if i < 0 {
		n.changed = s.mergeMissing(g)
		return n
	}
	scan := &found[i]
	g.refused = ""
	if g.pinned != scan.UUID {
		g.pinned, n.pin = scan.UUID, g
	}
	if scan.UUID != g.info.UUID || scan.Seqno != g.metadata.Seqno {
		s.model.distrust(g)
	}
	g.present = true
	g.info = *scan
	g.info.Volumes = nil
	g.allocatable, g.fragments = scan.Allocatable(), scan.FreeSegments
	g.free = scan.Free()
	g.metadata = metadata[g.name]
	g.metadata.Seqno = scan.Seqno
	g.mergePools(scan)
	g.exists = make(map[string]bool, len(scan.Volumes))
	g.foreign = 0
	halfMade := halfMade(scan)
	for i := range scan.Volumes {
		lv := &scan.Volumes[i]
		g.exists[lv.Name] = true
		v := s.model.volumes[lv.Name]
		if v == nil {
			if !g.extensions[lv.Name] {
				v = s.adopt(g, lv)
			}
			if v == nil {
				g.foreign += lv.Segments
				continue
			}
			if halfMade[lv.Name] && v.rec.Phase != deleting {
				v.rec.Phase = creating // Nobody was told of it.
			}
			if v.rec.Phase == deleting {
				n.undone = append(n.undone, v.rec)
			}
			n.adopted = append(n.adopted, v)
			n.changed = append(n.changed, v)
		}
		if s.update(v, lv, devices) {
			n.changed = append(n.changed, v)
		}
		v.halfMade, v.marked = halfMade[lv.Name], v.marked || isMarked(lv)
		if v.rec.Phase == creating && v.op == nil {
			// Whoever was making it ended in the middle; nobody was told of it.
			s.log.Info("an unfinished creation is undone", "volume", v.rec.ID, "name", v.rec.Ident.Name)
			s.model.bury(v)
			n.undone = append(n.undone, v.rec)
			n.changed = append(n.changed, v)
		}
	}
	s.model.markPlaced(g)
	for id, v := range s.model.volumes {
		if v.group != g || g.exists[id] || v.op != nil {
			continue
		}
		if v.rec.Phase != creating && v.rec.Phase != deleting {
			s.log.Warn("volume is gone: it was removed behind our back", "volume", id, "name", v.rec.Ident.Name)
		}
		if v.handle != nil {
			_ = v.handle.Close()
		}
		s.model.drop(v)
		n.vanished = append(n.vanished, id)
		n.changed = append(n.changed, v)
	}
	return n
}

// mergeMissing is merge for a group that LVM does not know any more. Its
// volumes are kept: the disks may come back.
func (s *Service) mergeMissing(g *group) (changed []*volume) {
	if g.present {
		s.log.Warn("volume group is gone", "group", g.name)
	}
	if refused := s.refusal(g.name, g.pinned); refused != g.refused {
		g.refused = refused
		s.log.Warn("volume group is not taken", "group", g.name, "reason", cmp.Or(refused, "it is not there"))
	}
	g.present, g.allocatable = false, 0
	for _, p := range g.pools {
		p.present, p.virtual = false, 0
	}
	for _, v := range s.model.volumes {
		if v.group == g && v.rec.Phase != deleting && v.op == nil {
			v.conditions = []*lvmdv1.Condition{condition("VolumeGroupMissing", "%s", cmp.Or(g.refused, fmt.Sprintf("volume group %q is gone", g.name)))}
			changed = append(changed, v)
		}
	}
	return changed
}

// update brings a known volume up to date and tells whether anything that is
// reported changed. The caller holds the model's lock.
func (s *Service) update(v *volume, lv *lvm.Volume, devices map[string]lvm.Device) bool {
	if v.op != nil {
		return false // its creation says what it is when it is done
	}
	extents := lv.Size / v.group.info.ExtentSize
	device, active := devices[lv.Name]
	conditions := conditionsOf(lv, device, active || v.rec.Ident.Snapshot)
	// Who has a device open is not reported.
	same := v.extents == extents && v.device.Path == device.Path &&
		v.device.Major == device.Major && v.device.Minor == device.Minor &&
		slices.EqualFunc(v.conditions, conditions, func(a, b *lvmdv1.Condition) bool {
			return a.GetType() == b.GetType() && a.GetMessage() == b.GetMessage()
		})
	if lv.Pool == "" {
		v.layout, v.on = lv.Layout, lv.On
	}
	v.extents, v.segments, v.device, v.conditions = extents, lv.Segments, device, conditions
	if p := v.group.poolOf(lv); v.pool != p {
		v.pool = p // A volume's pool never changes: this is when it is met.
	}
	return !same
}

// adopt makes a volume of ours that the model does not know known to it, as
// its tags describe it. It returns nil for volumes that are not ours. The
// caller holds the model's lock.
func (s *Service) adopt(g *group, lv *lvm.Volume) *volume {
	if !isOurs(lv.Tags) || !idPattern.MatchString(lv.Name) && !snapshotPattern.MatchString(lv.Name) {
		return nil
	}
	ident, err := identityFromTags(lv.Tags)
	if err != nil {
		s.log.Error("volume has our tag but cannot be understood; it is left alone", "volume", lv.Name, "group", g.name, "error", err)
		return nil
	}
	if other := s.model.names[ident.key()]; other != nil && !isMarked(lv) {
		s.log.Error("two volumes have one name; this one is left alone",
			"volume", lv.Name, "other", other.rec.ID, "name", ident.Name)
		return nil
	}
	v := &volume{
		group: g, extents: lv.Size / g.info.ExtentSize, segments: lv.Segments,
		rec: record{ID: lv.Name, Group: g.name, Phase: ready, Ident: ident, Created: lv.Created},
	}
	switch {
	case isMarked(lv):
		v.rec.Phase = deleting
	case slices.Contains(lv.Tags, tagCopying) || isExtension(lv.Tags):
		// How much of it was copied or zeroed is not known: nobody was told of it.
		v.rec.Phase = creating
	}
	s.log.Warn("volume was not in the journal; adopted from its tags", "volume", lv.Name, "name", ident.Name, "deleted", v.rec.Phase == deleting)
	s.model.add(v)
	return v
}

// settle makes durable what a merge found out.
func (s *Service) settle(n news) error {
	if n.pin != nil {
		if err := s.pin(n.pin); err != nil {
			return err
		}
	}
	for _, r := range n.undone {
		if err := s.journal.put(r); err != nil {
			return err
		}
	}
	for _, v := range n.adopted {
		if err := s.settleAdopted(v); err != nil {
			return err
		}
	}
	if len(n.undone) > 0 {
		s.model.mu.Lock()
		for _, r := range n.undone {
			if v := s.model.volumes[r.ID]; v != nil {
				v.group.wakeReaper()
			}
		}
		s.model.mu.Unlock()
	}
	s.tellOfKeys(n.vanished)
	wake(s.lost)
	return s.journal.remove(n.vanished)
}

// settleAdopted decides how far a volume had come that the journal did not
// know. A raw volume has nothing to finish. A file system that a probe does
// not find was never handed out, or is damaged: the volume stays, as
// unfinished, and nothing on it is touched until somebody asks for it by name.
func (s *Service) settleAdopted(v *volume) error {
	s.model.mu.Lock()
	rec, path := v.rec, v.device.Path
	if s.model.tooSmall(v) {
		rec.Phase = unfinished
	}
	s.model.mu.Unlock()
	if rec.Phase == creating || rec.Phase == deleting {
		return nil // Its undoing is journaled.
	}
	switch {
	case path == "":
	case rec.Ident.isLUKS():
		s.settleLUKS(&rec, path)
	case !rec.Ident.Block:
		info, err := s.probe(path)
		switch {
		case errors.Is(err, filesystem.ErrUnformatted):
			rec.Phase = unfinished
		case err != nil:
			s.log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
		case info.UUID != rec.Ident.FSUUID:
			// Signatures of an earlier life of the disk, or somebody changed the UUID.
			rec.Phase = unfinished
			s.log.Warn("adopted volume holds another file system than the one it was made with; it is not handed out",
				"volume", rec.ID, "want", rec.Ident.FSUUID, "is", info.UUID)
		}
	}
	if err := s.journal.put(rec); err != nil {
		return err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if v.rec.Phase != deleting {
		v.rec.Phase = rec.Phase
		s.model.publish(v.group, v)
	}
	return nil
}
