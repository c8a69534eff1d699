package lvmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	// returnGrace is how long a group's disks may take to appear after lvmd
	// started, before a group of the same name is made of others.
	returnGrace = 2 * time.Minute
	// examineInterval is how often, at most, a device that was refused for what
	// is on it is looked at again.
	examineInterval = 30 * time.Second
	// provideRetry is after what time a failed attempt is repeated, and how
	// often a loop file is looked after.
	provideRetry = time.Minute
	// smallestGrowth of a disk is worth a look before its group is known.
	smallestGrowth = 1 << 20
)

// provided is a volume group that lvmd makes and grows.
type provided struct {
	config.VolumeGroup
	group *group

	// The rest belongs to whoever provides: the start, and then one loop.

	// examined remembers, by device, what was refused for its contents.
	examined map[string]examination
	// loop is the device of the loop file.
	loop string
	// poolsDue is set when the group is new and its thin pools are yet to be made.
	poolsDue bool
	// logged is what was last logged of each device.
	logged map[string]string

	// refused is by path; the model's lock guards it.
	refused map[string]*refusal
	// failure is why the last attempt failed, or empty; guarded likewise.
	failure string
}

type examination struct {
	why *refusal
	// due is when it may be repeated, and stale whether that is of any use:
	// block devices changed since, or it failed.
	due   time.Time
	stale bool
}

// provider makes and grows the configured groups.
type provider struct {
	devices lvm.Devices
	config  *config.Config
	groups  []*provided
	started time.Time
	// loaded is false during the start.
	loaded bool
	// next is when the start wants to try again; zero is never.
	next time.Time
	// wake has one element when block devices came, went or changed.
	wake chan struct{}
	// The constants but in tests.
	returnGrace, examineInterval, retry time.Duration
}

func newProvider(devices lvm.Devices) *provider {
	return &provider{
		devices: devices, started: time.Now(), wake: make(chan struct{}, 1),
		returnGrace: returnGrace, examineInterval: examineInterval, retry: provideRetry,
	}
}

// configure takes over which of the model's groups are to be provided.
func (p *provider) configure(c *config.Config, m *model) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.config = c
	for i := range c.VolumeGroups {
		vg := &c.VolumeGroups[i]
		if p.devices == nil {
			return vg.Problem(vg.Name, "this lvmd cannot make volume groups")
		}
		g := m.groups[vg.Name]
		g.provided = &provided{
			VolumeGroup: *vg, group: g,
			examined: map[string]examination{}, logged: map[string]string{},
		}
		p.groups = append(p.groups, g.provided)
	}
	return nil
}

// devicesChanged makes that devices that were refused are looked at again.
func (p *provider) devicesChanged() {
	for _, g := range p.groups {
		for key, e := range g.examined {
			e.stale = true
			g.examined[key] = e
		}
	}
}

// provideAtStart provides before the groups are loaded. What cannot be made is
// logged and reported; the other groups are served all the same.
func (s *Service) provideAtStart(ctx context.Context, c *config.Config) error {
	if err := s.provider.configure(c, s.model); err != nil {
		return err
	}
	s.provider.next = s.provideAll(ctx)
	return ctx.Err()
}

// provideLoop provides whenever block devices change, until ctx is done.
func (s *Service) provideLoop(ctx context.Context) {
	s.provider.loaded = true
	for next := s.provider.next; ; {
		if !sleepUntil(ctx, s.provider.wake, next) {
			return
		}
		if next.IsZero() || time.Now().Before(next) {
			s.provider.devicesChanged()
		}
		next = s.provideAll(ctx)
	}
}

// soonest is the earlier of two times; zero is never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// provideAll makes and grows all groups as far as that is possible now, and
// returns when to try again without being woken; zero means never.
func (s *Service) provideAll(ctx context.Context) (next time.Time) {
	taken := map[string]bool{}
	for _, p := range s.provider.groups {
		again, err := s.provide(ctx, p, taken)
		if ctx.Err() != nil {
			return time.Time{}
		}
		failure := ""
		if err != nil {
			failure = err.Error()
			s.log.Error("the volume group cannot be made or grown", "group", p.Name, "error", err)
			again = soonest(again, time.Now().Add(s.provider.retry))
		}
		if p.LoopFile != nil {
			again = soonest(again, time.Now().Add(s.provider.retry))
		}
		s.model.mu.Lock()
		p.failure = failure
		s.model.publish(p.group)
		s.model.mu.Unlock()
		next = soonest(next, again)
	}
	return next
}

// provide makes or grows one group. taken has the devices that groups before it
// want, and gets those that this one wants. It returns when to try again.
func (s *Service) provide(ctx context.Context, p *provided, taken map[string]bool) (again time.Time, err error) {
	if p.LoopFile != nil {
		if p.loop, err = s.provider.devices.AttachFile(p.LoopFile.Path, p.LoopFile.Size); err != nil {
			return again, err
		}
	}
	all, err := s.provider.devices.BlockDevices()
	if err != nil {
		return again, err
	}
	defer func() {
		for i := range all {
			if p.wants(&all[i]) {
				taken[all[i].Path] = true
			}
		}
	}()
	if err := s.confirmJoined(p, all); err != nil {
		return again, err
	}
	s.model.mu.Lock()
	info := s.modelGroup(p)
	s.model.mu.Unlock()
	// What the model says may be old: it is good enough to see that there is
	// nothing to do, which is the rule.
	work := s.plan(p, info, all, taken)
	if info == nil {
		work.fresh = slices.DeleteFunc(work.fresh, func(d lvm.BlockDevice) bool { return s.isFullMember(p, &d) })
	}
	if !work.any() && !p.poolsDue {
		s.noteRefused(p, work.refused)
		return work.again, nil
	}
	done, err := s.take(ctx, p.group)
	if err != nil {
		return again, err
	}
	defer done()
	found, err := s.scan(ctx, []string{p.Name})
	if err != nil {
		return again, err
	}
	if len(found) == 0 && len(s.lvm.Others(p.Name)) > 0 {
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		return again, errors.New(s.refusal(p.Name, p.group.pinned))
	}
	info = nil
	if len(found) > 0 {
		info = &found[0]
	}
	work = s.plan(p, info, all, taken)
	changed, err := s.carryOut(ctx, p, info, &work)
	again = work.again
	s.noteRefused(p, work.refused)
	p.poolsDue = p.poolsDue || s.provider.loaded && err == nil && info == nil && changed
	if p.poolsDue && err == nil {
		err = s.makePoolsIn(ctx, s.provider.config, p.Name)
		p.poolsDue = false // Those that failed, retryPools tries again.
		changed = true
	}
	switch {
	case !s.provider.loaded:
		// The model is yet to be made, from a scan.
	case errors.Is(err, lvm.ErrTimedOut):
		s.wedge(p.group, err)
	case changed || err != nil:
		err = errors.Join(err, s.rescan(p.group, nil))
		p.group.wakeReaper()
	}
	return again, err
}

// isFullMember tells whether a device says that it belongs to the group, to its
// end: while the model does not have the group, there is nothing to do with it.
func (s *Service) isFullMember(p *provided, d *lvm.BlockDevice) bool {
	label, err := s.provider.devices.Label(d.Path)
	return err == nil && label.Group == p.Name && label.Size-label.KnownSize < smallestGrowth
}

// modelGroup is the group as the model has it; nil while it is not present.
// The caller holds the model's lock.
func (s *Service) modelGroup(p *provided) *lvm.Group {
	if !p.group.present {
		return nil
	}
	info := p.group.info
	return &info
}

// work is what there is to do for a group.
type work struct {
	// grown are devices of the group that have more room than it knows.
	grown []string
	// fresh are selected devices that are to be examined.
	fresh   []lvm.BlockDevice
	refused map[string]*refusal
	again   time.Time
}

func (w *work) any() bool { return len(w.grown)+len(w.fresh) > 0 }

// plan compares a group, nil when there is none, with the machine's devices.
// It opens devices only for reading, and runs nothing.
func (s *Service) plan(p *provided, g *lvm.Group, all []lvm.BlockDevice, taken map[string]bool) work {
	w := work{refused: map[string]*refusal{}}
	members := map[string]bool{}
	if g != nil {
		for _, d := range g.Devices {
			members[d.UUID] = true
			if d.Missing {
				continue
			}
			label, err := s.provider.devices.Label(d.Path)
			// LVM's own idea of the device's size tells that it was looked at.
			if err == nil && label.UUID == d.UUID && label.Size-label.KnownSize >= g.ExtentSize &&
				label.Size-d.DataOffset-d.Extents*g.ExtentSize >= g.ExtentSize {
				w.grown = append(w.grown, d.Path)
			}
		}
	}
	seen := map[string]bool{}
	for i := range all {
		d := &all[i]
		if !p.wants(d) || taken[d.Path] {
			continue
		}
		label, err := s.provider.devices.Label(d.Path)
		if err == nil && members[label.UUID] {
			continue
		}
		if errors.Is(err, lvm.ErrTimedOut) {
			w.refused[d.Path] = refuse("unreadable", "it does not answer")
			continue
		}
		if why := judge(&p.VolumeGroup, d); why != nil {
			w.refused[d.Path] = why
			continue
		}
		key := identityOf(d)
		seen[key] = true
		if old, ok := p.examined[key]; ok {
			if !old.stale || time.Now().Before(old.due) {
				w.refused[d.Path] = old.why
				if old.stale {
					w.again = soonest(w.again, old.due)
				}
				continue
			}
		}
		w.fresh = append(w.fresh, *d)
	}
	maps.DeleteFunc(p.examined, func(key string, _ examination) bool { return !seen[key] })
	return w
}

// identityOf tells a device from others that had its name before.
func identityOf(d *lvm.BlockDevice) string {
	return fmt.Sprintf("%s %d %d", d.Name, d.Sequence, d.Size)
}

// wants tells whether the configuration selects a device. Logical volumes never
// are; partitions, and devices made by software, only when they are named
// without wildcards.
func (p *provided) wants(d *lvm.BlockDevice) bool {
	if d.LogicalVolume {
		return false
	}
	if p.LoopFile != nil {
		return d.Path == p.loop
	}
	return slices.ContainsFunc(p.Devices, func(s config.DeviceSelector) bool {
		ok, literal := selects(&s, d)
		return ok && (literal || d.Parent == "" && !d.Virtual)
	})
}

// noteRefused takes over what was refused, and logs what is new of it.
func (s *Service) noteRefused(p *provided, refused map[string]*refusal) {
	for path, why := range refused {
		if p.logged[path] != why.message {
			s.log.Warn("a selected device is not used", "group", p.Name, "device", path, "reason", why.kind, "message", why.message)
		}
	}
	clear(p.logged)
	for path, why := range refused {
		p.logged[path] = why.message
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	p.refused = refused
}

// refusals is what was refused, by path; of no provided group, nothing. The
// caller holds the model's lock.
func (p *provided) refusals() map[string]*refusal {
	if p == nil {
		return nil
	}
	return p.refused
}

// absence says why a group does not exist yet. The caller holds the model's
// lock.
func (p *provided) absence() string {
	if p == nil {
		return ""
	}
	if p.failure != "" {
		return ": " + p.failure
	}
	var why []string
	for _, path := range slices.Sorted(maps.Keys(p.refused)) {
		why = append(why, path+": "+p.refused[path].message)
	}
	if len(why) == 0 {
		return ": no device is selected"
	}
	return ": no selected device can be used: " + strings.Join(why, "; ")
}
