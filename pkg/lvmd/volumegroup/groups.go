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
	// maxWaiting bounds the operations that wait for a group's slot. LVM does a few per second at
	// worst: further callers had better retry than wait for minutes.
	maxWaiting = 1024
	// slotTimeout bounds the wait of a caller's operation. Most callers leave long before; it
	// reports an overloaded group to those without a deadline. lvmd's own work waits without limit.
	slotTimeout   = 10 * time.Minute
	probeInterval = 5 * time.Second
	awayInterval  = time.Minute
	pollInterval  = 2 * time.Second
)

// Options configure Groups. All but the intervals are required.
type Options struct {
	LVM       lvm.Groups
	Journal   *journal.Journal
	Inventory *inventory.Inventory
	Log       *slog.Logger
	// StateDir has the files with which an administrator accepts other groups.
	StateDir string
	// Probe and Inspect examine the contents of adopted volumes.
	Probe   func(device string) (filesystem.Info, error)
	Inspect func(device, volume string) (luks.State, error)
	// Work is the context of commands; it ends with lvmd.
	Work context.Context
	// Spawn runs a function in the background, unless lvmd is stopping.
	Spawn func(func())
	// Resume continues an interrupted creation.
	Resume func(inventory.Admission)
	// Responding is called when LVM stops answering for a group, and when it answers again, with
	// whether it does for all groups.
	Responding func(all bool)
	// Scanned is called after each scan.
	Scanned func()
	// Zero means the default of the constants.
	PollInterval, ProbeInterval, AwayInterval, SlotTimeout, PoolGrace, ActivationRetry time.Duration
}

// Groups are the volume groups that lvmd serves. After Configure, the methods are safe for
// concurrent use.
type Groups struct {
	Options
	byName map[string]*Group
	// loaded is true after Load.
	loaded bool
	// excluded is the last logged description of devices that no scan reads.
	excluded atomic.Pointer[string]
}

// Group is a volume group that lvmd serves.
type Group struct {
	*inventory.Group
	// The slot's holder runs the commands that change the group.
	slot *fairqueue.Queue
	// Each Signal wakes a loop: Wipe and Remove those for tombstones, Look the one that detects
	// changes, and Inactive ActivateLoop.
	Wipe, Remove, Look, Inactive wakeup.Signal
	// implausible is why the last scan's group is refused. The slot guards it.
	implausible inventory.Refusal
	// owed names the volumes and pools that failed to get a device. The slot guards it. checks, by
	// pool, belong to the start, and then to ActivateLoop alone.
	owed   []string
	checks map[string]*poolCheck
	// late is the error of the group's scan at the start, or nil; only the start uses it.
	late error
}

// Reclaim wakes the loops that mark, wipe and remove deleted volumes.
func (g *Group) Reclaim() {
	g.Wipe.Set()
	g.Remove.Set()
}

// Queue returns the state of the wait for the group's slot.
func (g *Group) Queue() fairqueue.State { return g.slot.State() }

// New returns Groups without any group, until Configure.
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

// Configure adds the groups of the first configuration, and returns their names once each, in its
// order. It pins LVM to the groups known by the journal and the configuration. It is called once,
// before all else.
func (s *Groups) Configure(c *config.Config, states map[string]journal.Group) (names []string, err error) {
	identities, err := s.Journal.Identities()
	if err != nil {
		return nil, err
	}
	pins := map[string]lvm.Identity{}
	for name, state := range states {
		pins[name] = lvm.Identity{UUID: state.UUID} // An earlier version kept no more.
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
			pins[g.Name()] = lvm.Identity{UUID: listed[0]} // Take no other before Scan has seen the list.
		}
	}
	for name, identity := range pins {
		s.LVM.Pin(name, identity)
	}
	return names, nil
}

// Named returns the group of the name, or nil.
func (s *Groups) Named(name string) *Group { return s.byName[name] }

// Of returns the volume's group.
func (s *Groups) Of(v *inventory.Volume) *Group { return s.byName[v.Group().Name()] }

// All returns the groups by name. Callers must not change the map.
func (s *Groups) All() map[string]*Group { return s.byName }

// Remember stores the group's zeroed space in another change's transaction, as late as possible: it
// holds true only while the sequence number is the stored one.
func (s *Groups) Remember(g *Group) func(*journal.Tx) error {
	return func(tx *journal.Tx) error {
		r, ok := g.Remember()
		if !ok {
			return nil
		}
		return tx.PutGroup(g.Name(), journal.Group(r))
	}
}

// RememberAll stores the zeroed space of all groups.
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
