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

// Inventory is lvmd's model of its volume groups. Its exported methods, and those of its parts, are
// safe for concurrent use: they take its one lock, unless they return what never changes.
// Unexported methods are called with the lock held. Logging and observers run after its release.
type Inventory struct{ *model }

type model struct {
	mu      sync.Mutex
	options Options
	afterwards

	epoch      string
	generation uint64

	// refused is why the configuration file now has something other than config, or empty.
	config  *config.Config
	refused string

	classes []*class // in the configuration's order
	groups  map[string]*Group
	index
	watchers map[*Watcher]struct{}
	history
}

type afterwards struct {
	log   *slog.Logger
	later []func()
}

type index struct {
	// volumes has all our volumes by id, tombstones included.
	volumes map[string]*Volume
	// order is sorted by id; nil after volumes changed.
	order []*Volume
	// names has the volumes that are no tombstones, by spec.Identity.Key.
	names map[string]*Volume
}

type history struct {
	// removals are all those after generation horizon, in order.
	removals []removal
	horizon  uint64
}

// Options configure an Inventory. Log is required.
type Options struct {
	Log *slog.Logger
	// CallerGrace is how long a creation goes on without a caller.
	CallerGrace time.Duration
	// Entered is called after each change of a volume's state, unless nil.
	Entered func(from, to State)
	// Defect reports a broken invariant; nil logs it.
	Defect func(message string, args ...any)
}

// NewInventory returns an empty inventory. epoch distinguishes it from those of other runs of lvmd.
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

func (m *model) unlock() {
	later := m.later
	m.later = nil
	m.mu.Unlock()
	for _, do := range later {
		do()
	}
}

// info, warn and error log once the lock is released.
func (a *afterwards) info(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Info(message, args...) })
}

func (a *afterwards) warn(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Warn(message, args...) })
}

func (a *afterwards) error(message string, args ...any) {
	a.later = append(a.later, func() { a.log.Error(message, args...) })
}

func (m *model) add(v *Volume, in State) {
	m.enter(v, in)
	m.volumes[v.rec.ID] = v
	m.order = nil
	if v.rec.Phase != spec.Deleting {
		m.names[v.rec.Ident.Key()] = v
	}
}

func (m *model) markDeleted(v *Volume) {
	m.enter(v, Deleted)
	v.op = nil
	v.abandonEnlargement()
	m.unname(v)
}

func (m *model) drop(v *Volume) {
	m.enter(v, Gone)
	delete(m.volumes, v.rec.ID)
	v.group.setRefusing(v, false)
	m.order = nil
	m.unname(v)
}

func (x *index) unname(v *Volume) {
	if x.names[v.rec.Ident.Key()] == v {
		delete(x.names, v.rec.Ident.Key())
	}
}

// enter changes the state of a volume, and its phase. All changes of state go through it.
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

// publish raises the generation and notifies watchers of volumes, and of the group's classes whose
// report changed. Each watcher gets all of it in one message.
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

func (m *model) republish() {
	for _, c := range m.classes {
		c.reported = m.report(c)
	}
	m.generation++
	m.removals, m.horizon = nil, m.generation // Watchers that resume get everything, too.
	for w := range m.watchers {
		w.markFull()
	}
}
