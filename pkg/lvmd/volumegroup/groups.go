package volumegroup

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	// maxWaiting bounds how many operations may wait for a group's slot. LVM
	// does a few per second at worst; a caller that would wait for minutes had better
	// try again.
	maxWaiting = 1024
	// slotTimeout bounds the wait of an operation that a caller asked for. Most callers
	// leave long before; one without a deadline learns in the end that the volume
	// group is slower than what is asked of it. lvmd's own work waits as long as it
	// takes.
	slotTimeout = 10 * time.Minute
	// probeInterval is how often a group that stopped answering is asked again.
	probeInterval = 5 * time.Second
	// awayInterval is how often groups are looked for that are away.
	awayInterval = time.Minute
	// pollInterval is how often the groups' sequence numbers are read from the disks.
	pollInterval = 2 * time.Second
)

// Options configure Groups. All but the intervals are required.
type Options struct {
	LVM       lvm.Groups
	Journal   *journal.Journal
	Inventory *inventory.Inventory
	Log       *slog.Logger
	// StateDir is where an administrator accepts other groups.
	StateDir string
	// Probe and Inspect look at what is on the volumes that are adopted.
	Probe   func(device string) (filesystem.Info, error)
	Inspect func(device, volume string) (luks.State, error)
	// Work is the context of commands; it ends with lvmd.
	Work context.Context
	// Spawn runs a function in the background, unless lvmd is stopping.
	Spawn func(func())
	// Resume continues a creation that a scan found to have been interrupted.
	Resume func(inventory.Admission)
	// Responding is called when LVM stops or begins to answer for the groups.
	Responding func(all bool)
	// Scanned is called after each scan.
	Scanned func()
	// The constants are the defaults where these are zero.
	PollInterval, ProbeInterval, AwayInterval, SlotTimeout, PoolGrace, ActivationRetry time.Duration
}

// Groups are the volume groups that lvmd serves. Its methods are safe for concurrent use after
// Configure.
type Groups struct {
	Options
	byName map[string]*Group
	// loaded is true once the groups' first scan was taken over.
	loaded bool
	// excluded is what was last logged of the devices that no scan looks at.
	excluded atomic.Pointer[string]
}

// Group is a volume group that lvmd serves.
type Group struct {
	*inventory.Group
	// slot is exclusive: its holder runs the commands that change the group.
	slot *fairqueue.Queue
	// Wipe and Remove wake the loops that wipe and remove tombstones, Look the one that looks
	// for changes, and Inactive the one that activates what has no device.
	Wipe, Remove, Look, Inactive wakeup.Signal
	// implausible says why the group that the last scan found is refused. It is read and
	// written in the slot.
	implausible inventory.Refusal
	// owed names the volumes and pools that were to be activated and had no device. It is read and
	// written in the slot. checks are those of thin pools that go on, or ended and were not
	// looked at, by pool. The start has them, and then ActivateLoop.
	owed   []string
	checks map[string]*poolCheck
	// late is why a scan at the start did not find out what the group is, or nil. The start alone has it.
	late error
}

// Reclaim wakes the loops that mark, wipe and remove deleted volumes.
func (g *Group) Reclaim() {
	g.Wipe.Set()
	g.Remove.Set()
}

// Queue is how many wait for the group's slot.
func (g *Group) Queue() fairqueue.State { return g.slot.State() }

// New makes the groups of no configuration yet.
func New(o Options) *Groups {
	if o.PollInterval == 0 {
		o.PollInterval = pollInterval
	}
	if o.ProbeInterval == 0 {
		o.ProbeInterval = probeInterval
	}
	if o.AwayInterval == 0 {
		o.AwayInterval = awayInterval
	}
	if o.SlotTimeout == 0 {
		o.SlotTimeout = slotTimeout
	}
	if o.PoolGrace == 0 {
		o.PoolGrace = poolGrace
	}
	if o.ActivationRetry == 0 {
		o.ActivationRetry = firstActivationRetry
	}
	return &Groups{Options: o, byName: map[string]*Group{}}
}

// Configure makes the groups of the first configuration, and returns their names, each once, in
// the configuration's order. LVM takes only those that the journal, which has their states, and the configuration
// know. It is called once, before all else.
func (s *Groups) Configure(c *config.Config, states map[string]journal.Group) (names []string, err error) {
	identities, err := s.Journal.Identities()
	if err != nil {
		return nil, err
	}
	pins := map[string]lvm.Identity{}
	for name, state := range states {
		pins[name] = lvm.Identity{UUID: state.UUID} // An earlier version kept no other.
	}
	for name, identity := range identities {
		if identity.UUID != "" {
			pins[name] = lvm.Identity(identity)
		}
	}
	for _, g := range s.Inventory.Configure(c, pins) {
		s.byName[g.Name()] = &Group{
			Group: g, slot: fairqueue.New(maxWaiting, s.SlotTimeout),
			Wipe: wakeup.New(), Remove: wakeup.New(), Look: wakeup.New(), Inactive: wakeup.New(),
			checks: map[string]*poolCheck{},
		}
		names = append(names, g.Name())
		if listed := inventory.ListedUUIDs(c, g.Name()); len(listed) > 0 && !slices.Contains(listed, pins[g.Name()].UUID) {
			pins[g.Name()] = lvm.Identity{UUID: listed[0]} // No other is taken before Scan has looked at the list.
		}
	}
	for name, identity := range pins {
		s.LVM.Pin(name, identity)
	}
	return names, nil
}

// Named is the group of a name, or nil.
func (s *Groups) Named(name string) *Group { return s.byName[name] }

// Of is the group of a volume.
func (s *Groups) Of(v *inventory.Volume) *Group { return s.byName[v.Group().Name()] }

// All are the groups, by name. The map is not to be changed.
func (s *Groups) All() map[string]*Group { return s.byName }

// Remember stores, in the transaction of another change, what is known to hold zeroes in a
// group. It is written as late as can be: what is stored is true whenever its
// sequence number is the group's.
func (s *Groups) Remember(g *Group) func(*journal.Tx) error {
	return func(tx *journal.Tx) error {
		r, ok := g.Remember()
		if !ok {
			return nil
		}
		return tx.PutGroup(g.Name(), journal.Group(r))
	}
}

// RememberAll stores that of every group.
func (s *Groups) RememberAll() error {
	return s.Journal.Update(func(tx *journal.Tx) error {
		for _, g := range s.byName {
			if err := s.Remember(g)(tx); err != nil {
				return err
			}
		}
		return nil
	})
}
