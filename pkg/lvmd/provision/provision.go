package provision

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	// returnGrace is how long a group's disks may take to appear after lvmd
	// started, before a group of the same name is made of others.
	returnGrace = 2 * time.Minute
	// examineInterval is how often, at most, a device that was refused for what
	// is on it is looked at again.
	examineInterval = 30 * time.Second
	// retryInterval is after what time a failed attempt is repeated, and how
	// often a loop file is looked after.
	retryInterval = time.Minute
	// smallestGrowth of a disk is worth a look before its group is known.
	smallestGrowth = 1 << 20
)

// Intervals are how often, and for how long, things are tried. Zero means the default.
type Intervals struct {
	// ReturnGrace is how long a group's disks may take to appear after lvmd started, before a
	// group of the same name is made of others.
	ReturnGrace time.Duration
	// Examine is how often, at most, a device that was refused for what is on it is looked at
	// again.
	Examine time.Duration
	// Retry is after what time a failed attempt is repeated, and how often a loop file is
	// looked after.
	Retry time.Duration
}

// Groups is what provisioning needs of the package that serves the volume groups.
type Groups interface {
	// Scanned returns a group as last scanned, or nil while LVM does not know it.
	Scanned(group string) *lvm.Group
	// Acquire waits for the group's exclusive slot, which release gives back.
	Acquire(ctx context.Context, group string) (release func(), err error)
	// Scan reads a group from the disks; nil means that there is none. It is an error when
	// another group has the name. The caller has the group's slot, as for the rest.
	Scan(ctx context.Context, group string) (*lvm.Group, error)
	// ForgetUUID ends that only the group with the UUID that was seen is taken.
	ForgetUUID(group string) error
	// Kept says why no group is made in place of one of the name that was there, or is empty.
	// givenUp is true when an administrator gave that one up, so that it is not waited for.
	Kept(group string) (why string, givenUp bool, err error)
	// MakePools makes the group's thin pools that are not there.
	MakePools(ctx context.Context, group string) error
	// Changed takes over what an attempt did to a group: changed reports whether it did
	// anything, and err is how it failed. It returns err, and what else went wrong.
	Changed(group string, changed bool, err error) error
	// Report replaces what is reported of how the group is made. No slot is needed.
	Report(group string, s *State)
}

// State is how the making of a group stands. It never changes; a nil State is that of a group
// that lvmd does not make.
type State struct {
	// Refused has the selected devices that are not used, by path.
	Refused map[string]*Refusal
	// Failure is why the last attempt failed, or empty.
	Failure string
}

// Refusals is what was refused, by path.
func (s *State) Refusals() map[string]*Refusal {
	if s == nil {
		return nil
	}
	return s.Refused
}

// Absence says why the group does not exist yet, to follow what says that it does not.
func (s *State) Absence() string {
	if s == nil {
		return ""
	}
	if s.Failure != "" {
		return ": " + s.Failure
	}
	var why []string
	for _, path := range slices.Sorted(maps.Keys(s.Refused)) {
		why = append(why, path+": "+s.Refused[path].Message)
	}
	if len(why) == 0 {
		return ": no device is selected"
	}
	return ": no selected device can be used: " + strings.Join(why, "; ")
}

// Provisioner makes and grows the configured groups. AtStart and Run use it one after the
// other; Wake is safe for concurrent use.
type Provisioner struct {
	devices lvm.Devices
	journal *journal.Journal
	host    Groups
	log     *slog.Logger
	groups  []*group
	started time.Time
	// loaded is false during the start.
	loaded bool
	// next is when the start wants to try again; zero is never.
	next      time.Time
	wake      wakeup.Signal
	intervals Intervals
}

// group is a volume group that lvmd makes and grows.
type group struct {
	config.VolumeGroup
	// examined remembers, by device, what was refused for its contents.
	examined map[string]examination
	// loop is the device of the loop file.
	loop string
	// poolsDue is set when the group is new and its thin pools are yet to be made.
	poolsDue bool
	// logged is what was last logged of each device.
	logged map[string]string
	// refused is by path. It is replaced, never written to.
	refused map[string]*Refusal
}

type examination struct {
	why *Refusal
	// due is when it may be repeated, and stale whether that is of any use:
	// block devices changed since, or it failed.
	due   time.Time
	stale bool
}

// New makes a provisioner. devices may be nil when no configuration has groups to be made.
func New(devices lvm.Devices, j *journal.Journal, host Groups, log *slog.Logger, i Intervals) *Provisioner {
	return &Provisioner{
		devices: devices, journal: j, host: host, log: log, started: time.Now(), wake: wakeup.New(),
		intervals: Intervals{
			ReturnGrace: cmp.Or(i.ReturnGrace, returnGrace), Examine: cmp.Or(i.Examine, examineInterval), Retry: cmp.Or(i.Retry, retryInterval),
		},
	}
}

// Wake has the groups looked at soon: block devices came, went or changed.
func (p *Provisioner) Wake() { p.wake.Set() }

// AtStart makes and grows the configuration's groups before they are loaded. What cannot be made
// is logged and reported; the other groups are served all the same. Its errors are
// config.Problems, and that of ctx.
func (p *Provisioner) AtStart(ctx context.Context, c *config.Config) error {
	for i := range c.VolumeGroups {
		vg := &c.VolumeGroups[i]
		if p.devices == nil {
			return vg.Problem(vg.Name, "this lvmd cannot make volume groups")
		}
		p.groups = append(p.groups, &group{VolumeGroup: *vg, examined: map[string]examination{}, logged: map[string]string{}})
		p.host.Report(vg.Name, &State{})
	}
	p.next = p.attemptAll(ctx)
	return ctx.Err()
}

// Run makes and grows the groups whenever block devices change, until ctx is done. The groups
// are loaded by then.
func (p *Provisioner) Run(ctx context.Context) {
	p.loaded = true
	for next := p.next; p.wake.Wait(ctx, next); {
		if next.IsZero() || time.Now().Before(next) {
			p.devicesChanged()
		}
		next = p.attemptAll(ctx)
	}
}

// devicesChanged has devices that were refused looked at again.
func (p *Provisioner) devicesChanged() {
	for _, g := range p.groups {
		for key, e := range g.examined {
			e.stale = true
			g.examined[key] = e
		}
	}
}

// attemptAll makes and grows all groups as far as that is possible now, and returns when to try
// again without being woken; zero means never.
func (p *Provisioner) attemptAll(ctx context.Context) (next time.Time) {
	taken := map[string]bool{}
	for _, g := range p.groups {
		again, err := p.attempt(ctx, g, taken)
		if ctx.Err() != nil {
			return time.Time{}
		}
		failure := ""
		if err != nil {
			failure = err.Error()
			p.log.Error("the volume group cannot be made or grown", "group", g.Name, "error", err)
			again = wakeup.Earlier(again, time.Now().Add(p.intervals.Retry))
		}
		if g.LoopFile != nil {
			again = wakeup.Earlier(again, time.Now().Add(p.intervals.Retry))
		}
		p.host.Report(g.Name, &State{Refused: g.refused, Failure: failure})
		next = wakeup.Earlier(next, again)
	}
	return next
}

// attempt makes or grows one group. taken has the devices that groups before it want, and gets
// those that this one wants. It returns when to try again.
func (p *Provisioner) attempt(ctx context.Context, g *group, taken map[string]bool) (again time.Time, err error) {
	if g.LoopFile != nil {
		if g.loop, err = p.devices.AttachFile(g.LoopFile.Path, g.LoopFile.Size); err != nil {
			return again, err
		}
	}
	all, err := p.devices.BlockDevices()
	if err != nil {
		return again, err
	}
	defer func() {
		for i := range all {
			if g.wants(&all[i]) {
				taken[all[i].Path] = true
			}
		}
	}()
	if err := p.confirmJoined(g, all); err != nil {
		return again, err
	}
	scanned := p.host.Scanned(g.Name)
	// What was scanned may be old: it is good enough to see that there is nothing to do, which
	// is the rule.
	work := p.plan(g, scanned, all, taken)
	if scanned == nil {
		work.fresh = slices.DeleteFunc(work.fresh, func(d blockdev.Device) bool { return p.isFullMember(g, d.Path) })
		maps.DeleteFunc(work.refused, func(path string, why *Refusal) bool { return why.Kind == inUse && p.isFullMember(g, path) })
	}
	if !work.any() && !g.poolsDue {
		p.noteRefused(g, work.refused)
		return work.again, nil
	}
	return p.carryOut(ctx, g, all, taken)
}

// carryOut does for a group, in its exclusive slot, what there is to do.
func (p *Provisioner) carryOut(ctx context.Context, g *group, all []blockdev.Device, taken map[string]bool) (again time.Time, err error) {
	release, err := p.host.Acquire(ctx, g.Name)
	if err != nil {
		return again, err
	}
	defer release()
	scanned, err := p.host.Scan(ctx, g.Name)
	if err != nil {
		return again, err
	}
	work := p.plan(g, scanned, all, taken)
	changed, err := p.join(ctx, g, scanned, all, &work)
	p.noteRefused(g, work.refused)
	g.poolsDue = g.poolsDue || p.loaded && err == nil && scanned == nil && changed
	if g.poolsDue && err == nil {
		err = p.host.MakePools(ctx, g.Name)
		g.poolsDue = false // Those that failed are tried again by others.
		changed = true
	}
	if p.loaded { // Until then, the groups are yet to be scanned for the first time.
		err = p.host.Changed(g.Name, changed, err)
	}
	return work.again, err
}

// noteRefused takes over what was refused, and logs what is new of it.
func (p *Provisioner) noteRefused(g *group, refused map[string]*Refusal) {
	for path, why := range refused {
		if g.logged[path] != why.Message {
			p.log.Warn("a selected device is not used", "group", g.Name, "device", path, "reason", why.Kind, "message", why.Message)
		}
	}
	clear(g.logged)
	for path, why := range refused {
		g.logged[path] = why.Message
	}
	g.refused = refused
}
