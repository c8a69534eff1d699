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
	// returnGrace, examineInterval and retryInterval: see Intervals.
	returnGrace     = 2 * time.Minute
	examineInterval = 30 * time.Second
	retryInterval   = time.Minute
	// smallestGrowth of a disk, in bytes, needs work although its group is unknown.
	smallestGrowth = 1 << 20
)

// Intervals are times between attempts. Zero means the default.
type Intervals struct {
	// ReturnGrace is how long after lvmd's start a group's disks may appear, before lvmd makes a
	// group of its name from others.
	ReturnGrace time.Duration
	// Examine is the minimum time between examinations of a device refused for its contents.
	Examine time.Duration
	// Retry is the delay after a failed attempt, and between checks of a loop file.
	Retry time.Duration
}

// Groups is the Provisioner's view of the package that serves the volume groups.
type Groups interface {
	// Scanned returns a group as last scanned, or nil while LVM does not know it.
	Scanned(group string) *lvm.Group
	// Acquire waits for the group's exclusive slot.
	Acquire(ctx context.Context, group string) (release func(), err error)
	// Scan reads a group from the disks; nil means that none exists. It fails if another group has
	// the name. For this and the methods below, except Report, the caller has the group's slot.
	Scan(ctx context.Context, group string) (*lvm.Group, error)
	// ForgetUUID ends the restriction to the group with the UUID seen before.
	ForgetUUID(group string) error
	// Kept returns why no other group may be made in place of a missing one, or "". givenUp is true
	// if an administrator gave that up, so that its disks are not awaited.
	Kept(group string) (why string, givenUp bool, err error)
	// MakePools makes the group's missing thin pools.
	MakePools(ctx context.Context, group string) error
	// Changed is called after an attempt with its outcome. It returns err, joined with its own
	// errors.
	Changed(group string, changed bool, err error) error
	// Report replaces the reported state of the group.
	Report(group string, s *State)
}

// State is the progress of making a group. It is immutable; nil stands for a group that lvmd does
// not make.
type State struct {
	// Refused has the selected devices that are not used, by path.
	Refused map[string]*Refusal
	// Failure is why the last attempt failed, or empty.
	Failure string
}

// Refusals returns the refused devices, by path.
func (s *State) Refusals() map[string]*Refusal {
	if s == nil {
		return nil
	}
	return s.Refused
}

// Absence completes the message that the group does not exist.
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

// Provisioner makes and grows the configured groups. AtStart and Run must not run concurrently;
// Wake may be called at any time.
type Provisioner struct {
	devices lvm.Devices
	journal *journal.Journal
	host    Groups
	log     *slog.Logger
	groups  []*group
	started time.Time
	// loaded is false during the start.
	loaded bool
	// next is when to retry after the start; zero means never.
	next      time.Time
	wake      wakeup.Signal
	intervals Intervals
}

// group is a volume group that lvmd makes and grows.
type group struct {
	config.VolumeGroup
	// examined has devices refused for their contents, by identityOf.
	examined map[string]examination
	// loop is the device of the loop file.
	loop string
	// poolsDue is true while a new group lacks its thin pools.
	poolsDue bool
	// logged is the last logged reason of each device.
	logged map[string]string
	// refused is by path. It is replaced, never written to.
	refused map[string]*Refusal
}

type examination struct {
	why *Refusal
	// due is the earliest time to repeat it, which makes sense only if stale: block devices
	// changed, or it failed.
	due   time.Time
	stale bool
}

// New returns a Provisioner. devices may be nil if no configuration has groups to make.
func New(devices lvm.Devices, j *journal.Journal, host Groups, log *slog.Logger, i Intervals) *Provisioner {
	return &Provisioner{
		devices: devices, journal: j, host: host, log: log, started: time.Now(), wake: wakeup.New(),
		intervals: Intervals{
			ReturnGrace: cmp.Or(i.ReturnGrace, returnGrace), Examine: cmp.Or(i.Examine, examineInterval), Retry: cmp.Or(i.Retry, retryInterval),
		},
	}
}

// Wake triggers an attempt: block devices came, went or changed.
func (p *Provisioner) Wake() { p.wake.Set() }

// AtStart makes and grows the groups before they are loaded. It logs and reports failures, and lets
// the other groups be served. It returns only config.Problems and the error of ctx.
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

// Run makes and grows the loaded groups whenever block devices change, until ctx is done.
func (p *Provisioner) Run(ctx context.Context) {
	p.loaded = true
	for next := p.next; p.wake.Wait(ctx, next); {
		if next.IsZero() || time.Now().Before(next) {
			p.devicesChanged()
		}
		next = p.attemptAll(ctx)
	}
}

func (p *Provisioner) devicesChanged() {
	for _, g := range p.groups {
		for key, e := range g.examined {
			e.stale = true
			g.examined[key] = e
		}
	}
}

// attemptAll returns when to retry without being woken; zero means never.
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

// attempt makes or grows one group. taken has the devices that earlier groups select; it adds this
// group's. again is when to retry.
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
	// The scan may be old, but usually suffices to see that nothing is to be done.
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

// carryOut repeats the plan in the group's slot, and carries it out.
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
		g.poolsDue = false // The owner of the groups retries those that failed.
		changed = true
	}
	if p.loaded { // Before, the first scan is still to come.
		err = p.host.Changed(g.Name, changed, err)
	}
	return work.again, err
}

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
