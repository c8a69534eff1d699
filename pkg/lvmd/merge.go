package lvmd

import (
	"errors"
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
)

// devicesOf asks the kernel for the devices of our volumes.
func (s *Service) devicesOf(found []lvm.Group) map[string]lvm.Device {
	devices := map[string]lvm.Device{}
	for _, g := range found {
		for _, lv := range g.Volumes {
			if !isOurs(lv.Tags) {
				continue
			}
			if d, err := s.lvm.Device(g.Name, lv.Name); err == nil {
				devices[lv.Name] = d
			}
		}
	}
	return devices
}

// merge takes a scan of one group over into the model and publishes what is
// new. It returns the ids of volumes that are gone for good, for the journal,
// and the volumes that it had not known. The caller has the group's turn and
// holds the model's lock.
func (s *Service) merge(g *group, found []lvm.Group, devices map[string]lvm.Device) (vanished []string, adopted []*volume) {
	g.stale = false
	i := slices.IndexFunc(found, func(f lvm.Group) bool { return f.Name == g.name })
	if i < 0 {
		s.mergeMissing(g)
		return nil, nil
	}
	scan := &found[i]
	if g.present && g.info.UUID != scan.UUID {
		s.log.Warn("volume group was replaced by another of the same name", "group", g.name, "was", g.info.UUID, "is", scan.UUID)
	}
	g.present = true
	g.info = *scan
	g.info.Volumes = nil
	g.allocatable = scan.Allocatable()
	g.exists = make(map[string]bool, len(scan.Volumes))
	var changed []*volume
	for n := range scan.Volumes {
		lv := &scan.Volumes[n]
		g.exists[lv.Name] = true
		v := s.model.volumes[lv.Name]
		if v == nil {
			if v = s.adopt(g, lv); v == nil {
				continue
			}
			changed = append(changed, v)
			adopted = append(adopted, v)
		}
		if s.update(v, lv, devices) {
			changed = append(changed, v)
		}
	}
	for id, v := range s.model.volumes {
		if v.group != g || g.exists[id] || v.op != nil {
			continue
		}
		if v.rec.Phase != deleting {
			s.log.Warn("volume is gone: it was removed behind our back", "volume", id, "name", v.rec.Ident.Name)
		}
		if v.handle != nil {
			v.handle.Close()
		}
		s.model.drop(v)
		vanished = append(vanished, id)
		changed = append(changed, v)
	}
	s.model.publish(g, changed...)
	return vanished, adopted
}

// mergeMissing is merge for a group that LVM does not know any more. Its
// volumes are kept: the disks may come back.
func (s *Service) mergeMissing(g *group) {
	if g.present {
		s.log.Warn("volume group is gone", "group", g.name)
	}
	g.present, g.allocatable = false, 0
	var changed []*volume
	for _, v := range s.model.volumes {
		if v.group == g && v.rec.Phase != deleting && v.op == nil {
			v.conditions = append(v.conditions[:0:0], condition("VolumeGroupMissing", "volume group %q is gone", g.name))
			changed = append(changed, v)
		}
	}
	s.model.publish(g, changed...)
}

// update brings a known volume up to date and tells whether anything that is
// reported changed. The caller holds the model's lock.
func (s *Service) update(v *volume, lv *lvm.Volume, devices map[string]lvm.Device) bool {
	extents := lv.Size / v.group.info.ExtentSize
	device, active := devices[lv.Name]
	conditions := conditionsOf(lv, device, active)
	if v.op != nil {
		return false // its creation says what it is when it is done
	}
	// Who has a device open is not reported.
	same := v.extents == extents && v.device.Path == device.Path &&
		v.device.Major == device.Major && v.device.Minor == device.Minor &&
		slices.EqualFunc(v.conditions, conditions, func(a, b *lvmdv1.Condition) bool {
			return a.GetType() == b.GetType() && a.GetMessage() == b.GetMessage()
		})
	v.extents, v.device, v.conditions = extents, device, conditions
	return !same
}

// adopt makes a volume of ours that the model does not know known to it, as
// its tags describe it. It returns nil for volumes that are not ours. The
// caller holds the model's lock.
func (s *Service) adopt(g *group, lv *lvm.Volume) *volume {
	if !isOurs(lv.Tags) || !idPattern.MatchString(lv.Name) {
		return nil
	}
	ident, err := identityFromTags(lv.Tags)
	if err != nil {
		s.log.Error("volume has our tag but cannot be understood; it is left alone", "volume", lv.Name, "group", g.name, "error", err)
		return nil
	}
	if other := s.model.names[ident.Name]; other != nil {
		s.log.Error("two volumes have one name; this one is left alone",
			"volume", lv.Name, "other", other.rec.ID, "name", ident.Name)
		return nil
	}
	v := &volume{
		group: g, extents: lv.Size / g.info.ExtentSize,
		rec: record{ID: lv.Name, Group: g.name, Phase: ready, Ident: ident, Created: lv.Created},
	}
	s.log.Warn("volume was not in the journal; adopted from its tags", "volume", lv.Name, "name", ident.Name)
	s.model.add(v)
	return v
}

// settle decides how far volumes had come that the journal did not know, and
// puts them there. A raw volume has nothing to finish. A file system that a
// probe does not find was never handed out, or is damaged: the volume stays,
// as one whose creation is to be resumed by whoever asks for it by name, and
// nothing on it is touched until then.
func (s *Service) settle(adopted []*volume) error {
	for _, v := range adopted {
		s.model.mu.Lock()
		rec, path := v.rec, v.device.Path
		s.model.mu.Unlock()
		if !rec.Ident.Block && path != "" {
			info, err := s.probe(path)
			switch {
			case errors.Is(err, filesystem.ErrUnformatted):
				rec.Phase = creating
			case err != nil:
				s.log.Error("adopted volume cannot be read", "volume", rec.ID, "error", err)
			case info.UUID != rec.Ident.FSUUID:
				s.log.Warn("adopted volume holds another file system than the one it was made with",
					"volume", rec.ID, "want", rec.Ident.FSUUID, "is", info.UUID)
			}
		}
		if err := s.journal.put(rec); err != nil {
			return err
		}
		s.model.mu.Lock()
		if v.rec.Phase != deleting {
			v.rec.Phase = rec.Phase
			s.model.publish(v.group, v)
		}
		s.model.mu.Unlock()
	}
	return nil
}
