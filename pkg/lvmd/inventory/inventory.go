package inventory

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Inventory is what lvmd knows of its volume groups. The exported methods of it, and of what is in
// it, take its one lock and are safe for concurrent use, but for those that return what never
// changes and need none. The unexported ones are called with the lock held. What is logged and
// observed meanwhile comes after the lock is released.
type Inventory struct{ *model }

// model is the data of an Inventory, which its groups, pools and volumes share.
type model struct {
	mu      sync.Mutex
	options Options
	afterwards

	epoch      string
	generation uint64

	// config is what the classes and groups were made from, and refused why the
	// file that it came from holds something else now, or empty.
	config  *config.Config
	refused string

	classes []*class // in the configuration's order
	groups  map[string]*Group
	index
	watchers map[*Watcher]struct{}
	history
}

// afterwards is what is done when the lock is released.
type afterwards struct {
	log   *slog.Logger
	later []func()
}

// index has the volumes by what they are looked up by.
type index struct {
	// volumes holds all volumes of ours by id, tombstones included.
	volumes map[string]*Volume
	// order has the volumes in the order of their ids, or is nil after they changed.
	order []*Volume
	// names holds those that are no tombstones, by spec.Identity.Key.
	names map[string]*Volume
}

// history is what watchers that resume have missed.
type history struct {
	// removals are the latest ones, in order: all that came after the generation
	// horizon. See watch.go.
	removals []removal
	horizon  uint64
}

// Options configure an Inventory. Log is required.
type Options struct {
	Log *slog.Logger
	// CallerGrace is how long a creation goes on after its last caller has gone.
	CallerGrace time.Duration
	// Entered is called after each change of a volume's state; nil is for nothing.
	Entered func(from, to State)
	// Defect is called after what must not happen; nil logs it.
	Defect func(message string, args ...any)
}

// NewInventory makes an inventory that knows nothing yet. The epoch distinguishes it from those of
// other runs of lvmd.
func NewInventory(epoch string, o Options) *Inventory {
	if o.Defect == nil {
		o.Defect = o.Log.Error
	}
	return &Inventory{&model{
		epoch: epoch, options: o, afterwards: afterwards{log: o.Log},
		groups: map[string]*Group{}, index: index{volumes: map[string]*Volume{}, names: map[string]*Volume{}},
		watchers: map[*Watcher]struct{}{},
	}}
}

func (m *model) lock() { m.mu.Lock() }

// unlock releases the lock, and then does what was left for later.
func (m *model) unlock() {
	later := m.later
	m.later = nil
	m.mu.Unlock()
	for _, do := range later {
		do()
	}
}

// info and warn log once the lock is released.
func (a *afterwards) info(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Info(message, args...) })
}

func (a *afterwards) warn(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Warn(message, args...) })
}

func (a *afterwards) error(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Error(message, args...) })
}

// add takes a volume in, in a state.
func (m *model) add(v *Volume, in State) {
	m.enter(v, in)
	m.volumes[v.rec.ID] = v
	m.order = nil
	if v.rec.Phase != spec.Deleting {
		m.names[v.rec.Ident.Key()] = v
	}
}

// markDeleted makes a volume a tombstone.
func (m *model) markDeleted(v *Volume) {
	m.enter(v, Deleted)
	v.op = nil
	v.abandonEnlargement()
	m.unname(v)
}

// drop forgets a volume.
func (m *model) drop(v *Volume) {
	m.enter(v, Gone)
	delete(m.volumes, v.rec.ID)
	m.order = nil
	m.unname(v)
}

func (x *index) unname(v *Volume) {
	if x.names[v.rec.Ident.Key()] == v {
		delete(x.names, v.rec.Ident.Key())
	}
}

// enter changes the state of a volume, and the phase that goes with it. All changes of state
// go through it.
func (m *model) enter(v *Volume, to State) {
	from := v.lifecycle.state
	if from == to || from == Gone {
		return
	}
	if err := v.lifecycle.enter(to); err != nil {
		m.later = append(m.later, func() {
			m.options.Defect("a volume changed its state as it must not", "volume", v.rec.ID, "error", err)
		})
	}
	if p := phaseOf(to); p != "" {
		v.rec.Phase = p
	}
	if m.options.Entered != nil {
		m.later = append(m.later, func() { m.options.Entered(from, to) })
	}
}

// ordered are all volumes, in the order of their ids.
func (x *index) ordered() []*Volume {
	if x.order == nil {
		x.order = slices.SortedFunc(maps.Values(x.volumes), func(a, b *Volume) int { return strings.Compare(a.rec.ID, b.rec.ID) })
	}
	return x.order
}

// class finds a class by name; the empty name finds the default.
func (m *model) class(name string) *class {
	for _, c := range m.classes {
		if c.Name == name || name == "" && c.Default {
			return c
		}
	}
	return nil
}

// classNames lists the offered classes for messages.
func (m *model) classNames() string {
	var offered []string
	for _, c := range m.classes {
		if c.reported != nil {
			offered = append(offered, c.Name)
		}
	}
	if len(offered) == 0 {
		return "this node offers none"
	}
	return "this node offers " + strings.Join(offered, ", ")
}

// publish raises the generation and notifies the watchers that the volumes and
// all classes of the group may have changed. Everything published by one call
// reaches each watcher in one message.
func (m *model) publish(g *Group, volumes ...*Volume) {
	var classes []string
	for _, c := range m.classes {
		if c.in(g) == nil {
			continue
		}
		if r := m.report(c); !proto.Equal(r, c.reported) {
			c.reported, c.changed = r, m.generation+1
			classes = append(classes, c.Name)
		}
	}
	if len(classes) == 0 && len(volumes) == 0 {
		return
	}
	m.generation++
	for _, v := range volumes {
		m.note(v)
	}
	for w := range m.watchers {
		w.mark(len(m.volumes), classes, volumes)
	}
}

// republish reports everything to all watchers.
func (m *model) republish() {
	for _, c := range m.classes {
		c.reported = m.report(c)
	}
	m.generation++
	m.removals, m.horizon = nil, m.generation // A watcher that resumes gets everything, too.
	for w := range m.watchers {
		w.markFull()
	}
}
