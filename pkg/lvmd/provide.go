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
// is found on devices may add to w.refused.
//
// Each physical volume is an intent in the journal before it is made: one that
// an lvmd left without a group is known by its UUID, and joins later.
func (s *Service) carryOut(ctx context.Context, p *provided, g *lvm.Group, w *work) (again time.Time, changed bool, err error) {
	again = w.again
	if g != nil && (g.MissingDevices > 0 || g.Exported || g.ReadOnly) {
		return again, false, nil // LVM would refuse all of it; a scan that finds the group whole comes back here
	}
	for _, device := range w.grown {
		s.log.Info("a disk has grown", "group", p.Name, "device", device)
		if err := s.provider.devices.ResizeDevice(ctx, p.Name, device); err != nil {
			return again, changed, err
		}
		changed = true
	}
	records, err := s.journal.devices(p.Name)
	if err != nil {
		return again, changed, err
	}
	if err := s.confirmJoined(g, records); err != nil {
		return again, changed, err
	}
	var joining []deviceRecord
	for i := range w.fresh {
		d := &w.fresh[i]
		finish, overwrite, uuid := s.examine(ctx, p, d, w, records)
		if finish {
			r := records[uuid]
			r.Device = d.Path // the kernel may call it otherwise now
			joining = append(joining, r)
			continue
		}
		if w.refused[d.Path] != nil {
			continue
		}
		if until := s.awaits(g, records); !until.IsZero() {
			w.refused[d.Path] = refuse("waiting", "the group was on other disks, which may appear until %s", until.UTC().Format(time.RFC3339))
			again = soonest(again, until)
			continue
		}
		r, err := s.initDevice(ctx, p, d, overwrite, records)
		if err != nil {
			return again, changed, err
		}
		joining = append(joining, r)
	}
	if len(joining) == 0 {
		return again, changed, nil
	}
	if err := s.join(ctx, p, g, joining, records); err != nil {
		return again, changed, err
	}
	return again, true, nil
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
		p.examined[identityOf(d)] = examination{why: why, at: time.Now()}
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
func (s *Service) awaits(g *lvm.Group, records map[string]deviceRecord) time.Time {
	until := s.provider.started.Add(s.provider.returnGrace)
	if g != nil || time.Now().After(until) {
		return time.Time{}
	}
	for _, r := range records {
		if r.Joined {
			return until
		}
	}
	return time.Time{}
}

// confirmJoined notes in the journal which intents were carried out: an
// earlier lvmd may have ended in between.
func (s *Service) confirmJoined(g *lvm.Group, records map[string]deviceRecord) error {
	if g == nil {
		return nil
	}
	var joined []deviceRecord
	for _, d := range g.Devices {
		if r, ok := records[d.UUID]; ok && !r.Joined {
			r.Joined = true
			records[d.UUID] = r
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

// join makes the group of physical volumes, or adds them to it.
func (s *Service) join(ctx context.Context, p *provided, g *lvm.Group, joining []deviceRecord, records map[string]deviceRecord) error {
	devices := make([]string, len(joining))
	for i, r := range joining {
		devices[i] = r.Device
	}
	var err error
	if g == nil {
		extent := int64(defaultExtentSize)
		if p.Medium == config.PMEM {
			extent = pmemAlignment
		}
		s.log.Info("making a volume group", "group", p.Name, "devices", devices)
		err = s.provider.devices.CreateGroup(ctx, lvm.GroupOptions{Group: p.Name, Devices: devices, ExtentSize: extent})
	} else {
		s.log.Info("extending a volume group", "group", p.Name, "devices", devices)
		err = s.provider.devices.ExtendGroup(ctx, p.Name, devices)
	}
	if err != nil {
		return err
	}
	for i := range joining {
		joining[i].Joined = true
		delete(records, joining[i].UUID)
	}
	if err := s.journal.putDevices(joining...); err != nil {
		return err
	}
	if g != nil {
		return nil
	}
	// A new group: what the journal knew of one that had the name is over.
	var old []string
	for uuid := range records {
		old = append(old, uuid)
	}
	return s.journal.forgetDevices(old...)
}
