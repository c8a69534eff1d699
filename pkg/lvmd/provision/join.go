package provision

import (
	"context"
	"errors"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	defaultExtentSize    = 4 << 20
	defaultDataAlignment = 1 << 20
)

// join carries out the plan for a group; scanned is nil if the group does not exist. The caller has
// the group's slot, and scans after a change. Problems of single devices go to w.refused; err
// concerns the group.
func (p *Provisioner) join(ctx context.Context, g *group, scanned *lvm.Group, all []blockdev.Device, w *work) (changed bool, err error) {
	if scanned != nil && (scanned.MissingDevices > 0 || scanned.Exported || scanned.ReadOnly) {
		return false, nil // LVM would refuse all changes; the end of this is an event
	}
	for _, device := range w.grown {
		p.log.Info("a disk has grown", "group", g.Name, "device", device)
		if err := p.devices.ResizeDevice(ctx, g.Name, device); err != nil {
			return changed, err
		}
		changed = true
	}
	records, err := p.journal.Devices(g.Name)
	if err != nil {
		return changed, err
	}
	exists := scanned != nil
	if !exists && len(w.fresh) > 0 {
		if w.kept, w.givenUp, err = p.host.Kept(g.Name); err != nil {
			return changed, err
		}
	}
	if len(w.fresh) > 0 {
		w.made = p.madeOn(all)
	}
	for i := range w.fresh {
		d := &w.fresh[i]
		r, err := p.prepare(ctx, g, d, exists, w, records)
		if err == nil && r != nil {
			err = p.joinDevice(ctx, g, r, exists, records)
		}
		switch {
		case errors.Is(err, lvm.ErrTimedOut), errors.Is(err, apierror.ErrNotStored):
			return changed, err
		case err != nil:
			// One bad device must not keep the others out.
			p.log.Error("a device cannot be used", "group", g.Name, "device", d.Path, "error", err)
			// No event may shorten the delay: the attempt itself may have caused one.
			e := examination{why: refuse("failed", "%v", err), due: time.Now().Add(p.intervals.Retry), stale: true}
			w.refused[d.Path], g.examined[identityOf(d)] = e.why, e
			w.again = wakeup.Earlier(w.again, e.due)
		case r != nil:
			exists, changed = true, true
			w.sector = max(w.sector, d.LogicalBlockSize)
		}
	}
	return changed, nil
}

// prepare makes a physical volume that can join the group, unless the device is one. It returns nil
// for a refused device.
func (p *Provisioner) prepare(ctx context.Context, g *group, d *blockdev.Device, exists bool, w *work, records map[string]journal.Device) (*journal.Device, error) {
	if w.sector > 0 && d.LogicalBlockSize > 0 && d.LogicalBlockSize != w.sector {
		why := refuse("sectors", "its sectors have %d bytes, those of the group's disks %d: name it for a group of its own", d.LogicalBlockSize, w.sector)
		w.refused[d.Path] = why
		g.examined[identityOf(d)] = examination{why: why, due: time.Now().Add(p.intervals.Examine)}
		return nil, nil
	}
	finish, overwrite, uuid := p.examine(ctx, g, d, w, records)
	if w.refused[d.Path] != nil {
		return nil, nil
	}
	if w.kept != "" {
		w.refused[d.Path] = refuse("waiting", "%s", w.kept)
		w.again = wakeup.Earlier(w.again, time.Now().Add(p.intervals.Retry)) // An administrator may give the group up.
		return nil, nil
	}
	if until := p.awaits(exists || w.givenUp, records); !until.IsZero() {
		w.refused[d.Path] = refuse("waiting", "the group was on other disks, which may appear until %s", until.UTC().Format(time.RFC3339))
		w.again = wakeup.Earlier(w.again, until)
		return nil, nil
	}
	if finish {
		r := records[uuid]
		r.Device = d.Path // the kernel may have renamed it
		return &r, nil
	}
	r, err := p.initDevice(ctx, g, d, overwrite, w.made, records)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// examine checks a device's contents. It refuses an unusable one until devices change.
func (p *Provisioner) examine(ctx context.Context, g *group, d *blockdev.Device, w *work, records map[string]journal.Device) (finish, overwrite bool, uuid string) {
	c, err := p.devices.Examine(ctx, d.Path)
	var why *Refusal
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		why = refuse("gone", "it is gone")
	case errors.Is(err, lvm.ErrBusy):
		why = refuse(inUse, "it is mounted, or something else has claimed it")
	case err != nil:
		why = refuse("unreadable", "%v", err)
	default:
		finish, overwrite, why = checkContents(&g.VolumeGroup, d, &c, records)
	}
	if why != nil {
		w.refused[d.Path] = why
		g.examined[identityOf(d)] = examination{why: why, due: time.Now().Add(p.intervals.Examine)}
		return false, false, ""
	}
	if overwrite {
		p.log.Warn("what is on a device is destroyed, as allowSignatures says", "group", g.Name, "device", d.Path, "contents", c.String())
	}
	if c.Label != nil {
		uuid = c.Label.UUID
	}
	return finish, overwrite, uuid
}

// awaits returns the time until which not to make the group, as its former disks may only be late;
// or zero.
func (p *Provisioner) awaits(exists bool, records map[string]journal.Device) time.Time {
	until := p.started.Add(p.intervals.ReturnGrace)
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

// confirmJoined ends the intents that the devices' labels show as carried out: an earlier lvmd may
// have ended before it did so.
func (p *Provisioner) confirmJoined(g *group, all []blockdev.Device) error {
	records, err := p.journal.Devices(g.Name)
	if err != nil {
		return err
	}
	var joined []journal.Device
	for i := range all {
		if !g.wants(&all[i]) || all[i].UserData != "" {
			continue
		}
		label, err := p.devices.Label(all[i].Path)
		if err == nil && label.Group == g.Name && isIntent(records, label.UUID) {
			r := records[label.UUID]
			r.Joined = true
			joined = append(joined, r)
		}
	}
	return p.journal.PutDevices(joined...)
}

// madeOn returns the UUIDs of all physical volumes, also on devices that no group selects.
func (p *Provisioner) madeOn(all []blockdev.Device) map[string]bool {
	made := map[string]bool{}
	for i := range all {
		if all[i].UserData != "" || all[i].Mapping.LogicalVolume {
			continue
		}
		if label, _ := p.devices.Label(all[i].Path); label.UUID != "" { // An inconsistent label has a UUID, too.
			made[label.UUID] = true
		}
	}
	return made
}

func (p *Provisioner) initDevice(ctx context.Context, g *group, d *blockdev.Device, overwrite bool, made map[string]bool, records map[string]journal.Device) (journal.Device, error) {
	r := journal.Device{UUID: ondisk.NewUUID(), Group: g.Name, Device: d.Path}
	for _, old := range records {
		// Reuse an intent that made nothing: a device needs one only. One that made a physical
		// volume stays with that, whatever the kernel calls the device now.
		if !old.Joined && old.Device == d.Path && !made[old.UUID] {
			r = old
		}
	}
	if err := p.journal.PutDevices(r); err != nil {
		return r, err
	}
	alignment := int64(defaultDataAlignment)
	if g.Medium == config.PMEM {
		alignment = layout.PMEMAlignment
	}
	p.log.Info("making a physical volume", "group", g.Name, "device", d.Path, "size", d.Size, "model", d.Model, "serial", d.Serial, "uuid", r.UUID)
	err := p.devices.InitDevice(ctx, lvm.InitOptions{
		Device: d.Path, UUID: r.UUID, MetadataSize: lvm.MetadataSize(d.Size), DataAlignment: alignment, Overwrite: overwrite,
	})
	return r, err
}

func (p *Provisioner) joinDevice(ctx context.Context, g *group, r *journal.Device, exists bool, records map[string]journal.Device) error {
	devices := []string{r.Device}
	var old []string
	if exists {
		p.log.Info("extending a volume group", "group", g.Name, "device", r.Device)
		if err := p.devices.ExtendGroup(ctx, g.Name, devices); err != nil {
			return err
		}
	} else {
		extent := int64(defaultExtentSize)
		if g.Medium == config.PMEM {
			extent = layout.PMEMAlignment
		}
		if err := p.host.ForgetUUID(g.Name); err != nil {
			return err
		}
		p.log.Info("making a volume group", "group", g.Name, "device", r.Device)
		if err := p.devices.CreateGroup(ctx, lvm.GroupOptions{Group: g.Name, Devices: devices, ExtentSize: extent}); err != nil {
			return err
		}
		// Forget devices of an earlier group of this name.
		for uuid, other := range records {
			if other.Joined {
				old = append(old, uuid)
			}
		}
	}
	r.Joined = true
	records[r.UUID] = *r
	return errors.Join(p.journal.PutDevices(*r), p.journal.RemoveDevices(old...))
}
