package lvmd

import (
	"context"
	"errors"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	defaultExtentSize    = 4 << 20
	defaultDataAlignment = 1 << 20
)

// carryOut does what was planned for a group, nil when there is none yet. The
// caller has the group's turn, and scans the group when it was changed. What
// is found on devices, and what fails with one of them, adds to w.refused; an
// error is about the whole.
//
// Each physical volume is an intent in the journal before it is made: one that
// an lvmd left without a group is known by its UUID, and joins later.
func (s *Service) carryOut(ctx context.Context, p *provided, g *lvm.Group, w *work) (changed bool, err error) {
	if g != nil && (g.MissingDevices > 0 || g.Exported || g.ReadOnly) {
		return false, nil // LVM would refuse all of it; what ends that is an event
	}
	for _, device := range w.grown {
		s.log.Info("a disk has grown", "group", p.Name, "device", device)
		if err := s.provider.devices.ResizeDevice(ctx, p.Name, device); err != nil {
			return changed, err
		}
		changed = true
	}
	records, err := s.journal.devices(p.Name)
	if err != nil {
		return changed, err
	}
	exists := g != nil
	for i := range w.fresh {
		d := &w.fresh[i]
		r, err := s.ready(ctx, p, d, exists, w, records)
		if err == nil && r != nil {
			err = s.join(ctx, p, r, exists, records)
		}
		switch {
		case errors.Is(err, lvm.ErrTimedOut), errors.Is(err, errJournal):
			return changed, err
		case err != nil:
			// One bad device does not keep the others out.
			s.log.Error("a device cannot be used", "group", p.Name, "device", d.Path, "error", err)
			// Not before its time, for whatever event: the attempt may have made one.
			e := examination{why: refuse("failed", "%v", err), due: time.Now().Add(s.provider.retry), stale: true}
			w.refused[d.Path], p.examined[identityOf(d)] = e.why, e
			w.again = soonest(w.again, e.due)
		case r != nil:
			exists, changed = true, true
		}
	}
	return changed, nil
}

// ready makes a device a physical volume that can join the group, unless it is
// one. It returns nil when the device is refused.
func (s *Service) ready(ctx context.Context, p *provided, d *lvm.BlockDevice, exists bool, w *work, records map[string]deviceRecord) (*deviceRecord, error) {
	finish, overwrite, uuid := s.examine(ctx, p, d, w, records)
	if finish {
		r := records[uuid]
		r.Device = d.Path // the kernel may call it otherwise now
		return &r, nil
	}
	if w.refused[d.Path] != nil {
		return nil, nil
	}
	if until := s.awaits(exists, records); !until.IsZero() {
		w.refused[d.Path] = refuse("waiting", "the group was on other disks, which may appear until %s", until.UTC().Format(time.RFC3339))
		w.again = soonest(w.again, until)
		return nil, nil
	}
	r, err := s.initDevice(ctx, p, d, overwrite, records)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// examine looks at what is on a device. When that speaks against it, it is
// noted in w.refused, and not looked at again until devices change.
func (s *Service) examine(ctx context.Context, p *provided, d *lvm.BlockDevice, w *work, records map[string]deviceRecord) (finish, overwrite bool, uuid string) {
	c, err := s.provider.devices.Examine(ctx, d.Path)
	var why *refusal
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		why = refuse("gone", "it is gone")
	case errors.Is(err, lvm.ErrBusy):
		why = refuse("in_use", "it is mounted, or something else has claimed it")
	case err != nil:
		why = refuse("unreadable", "%v", err)
	default:
		finish, overwrite, why = judgeContents(&p.VolumeGroup, d, &c, records)
	}
	if why != nil {
		w.refused[d.Path] = why
		p.examined[identityOf(d)] = examination{why: why, due: time.Now().Add(s.provider.examineInterval)}
		return false, false, ""
	}
	if overwrite {
		s.log.Warn("what is on a device is destroyed, as allowSignatures says", "group", p.Name, "device", d.Path, "contents", c.String())
	}
	if c.Label != nil {
		uuid = c.Label.UUID
	}
	return finish, overwrite, uuid
}

// awaits tells until when a group is not made anew, because it was on other
// disks that may only be late; zero when nothing is in the way.
func (s *Service) awaits(exists bool, records map[string]deviceRecord) time.Time {
	until := s.provider.started.Add(s.provider.returnGrace)
	if exists || time.Now().After(until) {
		return time.Time{}
	}
	for _, r := range records {
		if r.Joined {
			return until
		}
	}
	return time.Time{}
}

// confirmJoined notes in the journal which intents were carried out, by what
// the devices say: an earlier lvmd may have ended in between.
func (s *Service) confirmJoined(p *provided, all []lvm.BlockDevice) error {
	records, err := s.journal.devices(p.Name)
	if err != nil {
		return err
	}
	var joined []deviceRecord
	for i := range all {
		if !p.wants(&all[i]) {
			continue
		}
		label, err := s.provider.devices.Label(all[i].Path)
		if err == nil && label.Group == p.Name && isIntent(records, label.UUID) {
			r := records[label.UUID]
			r.Joined = true
			joined = append(joined, r)
		}
	}
	return s.journal.putDevices(joined...)
}

// initDevice makes a device a physical volume that belongs to no group yet.
func (s *Service) initDevice(ctx context.Context, p *provided, d *lvm.BlockDevice, overwrite bool, records map[string]deviceRecord) (deviceRecord, error) {
	r := deviceRecord{UUID: lvm.NewPhysicalVolumeUUID(), Group: p.Name, Device: d.Path}
	for _, old := range records {
		// The intent of an attempt that made nothing: one per device is enough.
		if !old.Joined && old.Device == d.Path {
			r = old
		}
	}
	if err := s.journal.putDevices(r); err != nil {
		return r, err
	}
	alignment := int64(defaultDataAlignment)
	if p.Medium == config.PMEM {
		alignment = pmemAlignment
	}
	s.log.Info("making a physical volume", "group", p.Name, "device", d.Path, "size", d.Size, "model", d.Model, "serial", d.Serial, "uuid", r.UUID)
	err := s.provider.devices.InitDevice(ctx, lvm.InitOptions{
		Device: d.Path, UUID: r.UUID, MetadataSize: lvm.MetadataSize(d.Size), DataAlignment: alignment, Overwrite: overwrite,
	})
	return r, err
}

// join makes the group of a physical volume, or adds it.
func (s *Service) join(ctx context.Context, p *provided, r *deviceRecord, exists bool, records map[string]deviceRecord) error {
	devices := []string{r.Device}
	var old []string
	if exists {
		s.log.Info("extending a volume group", "group", p.Name, "device", r.Device)
		if err := s.provider.devices.ExtendGroup(ctx, p.Name, devices); err != nil {
			return err
		}
	} else {
		extent := int64(defaultExtentSize)
		if p.Medium == config.PMEM {
			extent = pmemAlignment
		}
		if err := s.unpin(p.group); err != nil {
			return err
		}
		s.log.Info("making a volume group", "group", p.Name, "device", r.Device)
		if err := s.provider.devices.CreateGroup(ctx, lvm.GroupOptions{Group: p.Name, Devices: devices, ExtentSize: extent}); err != nil {
			return err
		}
		// What the journal knew of another group of this name is over.
		for uuid, other := range records {
			if other.Joined {
				old = append(old, uuid)
			}
		}
	}
	r.Joined = true
	records[r.UUID] = *r
	return errors.Join(s.journal.putDevices(*r), s.journal.forgetDevices(old...))
}
