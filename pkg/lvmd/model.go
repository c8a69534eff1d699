package lvmd

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// model is what lvmd believes. Its lock guards everything in it, including
// the fields of its groups, classes and volumes unless said otherwise.
type model struct {
	mu         sync.Mutex
	epoch      string
	generation uint64

	// config is what the classes and groups were made from, and refused why the
	// file that it came from holds something else now, or empty.
	config  *config.Config
	refused string

	classes []*class // in the configuration's order
	groups  map[string]*group
	// volumes holds all volumes of ours by id, tombstones included.
	volumes map[string]*volume
	// order has the volumes in the order of their ids, or is nil after they changed.
	order []*volume
	// names holds those that are no tombstones, by identity.key.
	names    map[string]*volume
	watchers map[*watcher]struct{}
	// removals are the latest ones, in order: all that came after the generation
	// horizon. See watch.go.
	removals []removal
	horizon  uint64
}

// class is a device class and what was last told about it.
type class struct {
	config.DeviceClass
	// parts has the class' groups, in the configuration's order.
	parts []*part
	// wiping limits the rate of wipes; nil means no limit.
	wiping *rate.Limiter
	// copying limits the rate of copies to volumes of the class; nil means no limit.
	copying *rate.Limiter
	// reported is nil while the class is not offered.
	reported *lvmdv1.DeviceClass
	// changed is the generation that reported changed with.
	changed uint64
}

// part is a class in one of its groups.
type part struct {
	*class
	group *group
	// pool is the class' thin pool in the group, if it is thin, or nil.
	pool *pool
}

// group is a volume group.
type group struct {
	name string
	// turns orders the commands that change the group. It has its own lock.
	turns *queue
	// reap and remove wake the loops that wipe and remove tombstones, and look
	// the one that looks for changes. Each is a channel of one.
	reap, remove, look chan struct{}

	// provided is nil, or what makes and grows the group. It never changes.
	provided *provided

	// present is false while LVM does not know the group.
	present bool
	// pinned is the UUID that the journal has of the group, and refused says why a group
	// of its name is not taken for it, or is empty: see identity.go.
	pinned, refused string
	// info is the group as last scanned, but for its volumes.
	info lvm.Group
	// pools are the group's thin pools that we have to do with, by name.
	pools map[string]*pool
	// exists names all logical volumes of the group, ours or not.
	exists map[string]bool
	// extensions are the logical volumes that hold what volumes are growing by: see
	// extension.go.
	extensions map[string]bool
	// allocatable is how many extents LVM could give now.
	allocatable int64
	// creating and expanding are extents promised to operations that LVM has
	// not carried out yet; promisedText is what they may take of the metadata.
	creating, expanding, promisedText int64
	// creations counts the volumes of creations that were admitted and not carried out yet.
	creations int64
	// placed groups have free, what is free on each device, and plans, what is
	// promised of it, by volume: see layouts.go.
	placed bool
	free   []lvm.Free
	plans  map[*volume]plan
	// metadata is the metadata as last read; the zero value where it cannot be.
	metadata lvm.Metadata
	// clean is what of the group's free space is known to hold zeroes.
	// accounted is set when the change under way said what it took.
	clean clean
	// distrusted counts how often all that was known of it was forgotten: what was
	// read of the group before says nothing of it afterwards.
	distrusted int
	// chunks counts those of its tombstones that were chosen to be wiped.
	chunks    int64
	accounted bool
	// fragments is in how many pieces a volume of all free extents would lie,
	// at most.
	fragments int64
	// foreign is in how many pieces volumes lie that are not ours.
	foreign int64
	// wedged is when LVM stopped answering for this group, or zero.
	wedged time.Time
	// stale is set when a command may have changed more than was noticed.
	stale bool
	// failing is when a disk last failed a command of ours, or zero since one
	// went well.
	failing time.Time
	// doubtful is set when a command of ours failed, until devices that it may
	// have left in the middle of a change are mended.
	doubtful bool
	// poolsDue is when thin pools that could not be made are tried again, or zero.
	poolsDue time.Time
	// recheck is set when a device came or went since the scan at scanned.
	recheck bool
	scanned time.Time
	// blind is set while the sequence number cannot be read although a scan
	// finds the group: it is then scanned at intervals.
	blind bool
}

// volume is a logical volume of ours.
type volume struct {
	rec   record
	group *group
	// changed is the generation of what was last published of the volume; gone is
	// set once that was its end.
	changed uint64
	gone    bool
	// pool is what a thin volume lies in; nil for others.
	pool    *pool
	extents int64
	// layout is how it lies, and on names the UUIDs of its devices where its
	// group is placed.
	layout lvm.Layout
	on     []string
	// segments is in how many pieces it lies, at most.
	segments int64
	device   lvm.Device
	// conditions is empty when healthy; so is raid, which the kernel says of
	// the images of a RAID volume.
	conditions, raid []*lvmdv1.Condition
	// found is what the node plugin found wrong with what is on the volume.
	found []*lvmdv1.Condition
	// entry is the volume in a list, encoded, as it was when entryOf was told of it;
	// or nil.
	entry   []byte
	entryOf told
	// op is the creation under way, or nil.
	op *creation
	// promisedText is what the group promised of its metadata.
	promisedText int64
	// claimed is true while an expansion or a deletion has the volume.
	claimed bool
	// expansion is the one under way that others can join, or nil.
	expansion *expansion
	// pins counts the snapshots and volumes that are being made of this one.
	pins int
	// making is set while the volume is made of another one.
	making *making
	// unclean is where a new volume may not hold zeroes. Its maker has it.
	unclean spans

	// The rest is about tombstones.

	// halfMade is true of what LVM has not finished making, see halfMade.
	halfMade bool
	// marked is true of a tombstone that LVM's metadata shows to be one, see mark.go.
	marked bool
	// handle is open from the moment of deletion until the wipe is done.
	handle lvm.Handle
	// wiped is true when only the removal is left, and pieces is then where
	// the volume lies, if that is known to hold zeroes.
	wiped  bool
	pieces []lvm.Piece
	// waitsSince counts the group's chunks up to its own last one, or to its deletion;
	// zero means that it was not looked at yet.
	waitsSince int64
	// retryAt delays the next attempt after a failure; failures counts them.
	retryAt  time.Time
	failures int
}

func newModel(epoch string) *model {
	return &model{
		epoch:  epoch,
		groups: map[string]*group{}, volumes: map[string]*volume{}, names: map[string]*volume{},
		watchers: map[*watcher]struct{}{},
	}
}

// add puts a volume into the model. The caller holds the lock.
func (m *model) add(v *volume) {
	m.volumes[v.rec.ID] = v
	m.order = nil
	if v.rec.Phase != deleting {
		m.names[v.rec.Ident.key()] = v
	}
}

// bury makes a volume a tombstone. The caller holds the lock.
func (m *model) bury(v *volume) {
	v.rec.Phase = deleting
	v.op = nil
	if m.names[v.rec.Ident.key()] == v {
		delete(m.names, v.rec.Ident.key())
	}
}

// redeem takes back what a group promised to a creation: it was given, or is
// not needed. The caller holds the lock.
func (v *volume) redeem() {
	if v.pool != nil {
		v.pool.creating -= v.extents
	} else {
		v.group.creating -= v.takes(v.extents)
		delete(v.group.plans, v)
	}
	v.group.creations--
	v.group.promisedText -= v.promisedText
	v.promisedText = 0
}

// drop forgets a volume. The caller holds the lock.
func (m *model) drop(v *volume) {
	delete(m.volumes, v.rec.ID)
	m.order = nil
	if m.names[v.rec.Ident.key()] == v {
		delete(m.names, v.rec.Ident.key())
	}
}

// ordered are all volumes, in the order of their ids. The caller holds the lock.
func (m *model) ordered() []*volume {
	if m.order == nil {
		m.order = slices.SortedFunc(maps.Values(m.volumes), func(a, b *volume) int { return strings.Compare(a.rec.ID, b.rec.ID) })
	}
	return m.order
}

// class finds a class by name; the empty name finds the default. The caller
// holds the lock.
func (m *model) class(name string) *class {
	for _, c := range m.classes {
		if c.Name == name || name == "" && c.Default {
			return c
		}
	}
	return nil
}

// publish raises the generation and tells the watchers that the volumes and
// all classes of the group may have changed. Everything published by one call
// reaches each watcher in one message. The caller holds the lock.
func (m *model) publish(g *group, volumes ...*volume) {
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

// canFree tells whether volumes of the group can be wiped and removed. While a
// device is missing they must not be: LVM would remove those that lie
// elsewhere, and from then on refuse the device when it comes back, until an
// administrator restores it. The caller holds the model's lock.
func (g *group) canFree() bool {
	return g.present && !g.stale && g.wedged.IsZero() && g.info.MissingDevices == 0
}

// wakeReaper wakes the loops that mark, wipe and remove deleted volumes.
func (g *group) wakeReaper() {
	wake(g.reap)
	wake(g.remove)
}

// wakeRemover tells the remove loop that there is something to do.
func (g *group) wakeRemover() { wake(g.remove) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
