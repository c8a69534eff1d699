package inventory

import (
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/quantity"
)

// Expansion is the growth of one volume. Its exported fields do not change.
type Expansion struct {
	Volume *Volume
	// Extents is the volume's size after the expansion.
	Extents int64
	// Extension is the logical volume that holds the new extents until they read as zeroes; nil if
	// what they hold does not matter. With an extension the expansion outlives its callers, and
	// others join it.
	Extension *Volume
	more      int64
	reserved  bool
	// cancel ends an expansion with an extension.
	cancel func()
	// done is closed at the end, when err is the result.
	done chan struct{}
	err  error
}

// Done is closed when the expansion ends.
func (e *Expansion) Done() <-chan struct{} { return e.done }

// Err returns the result once the expansion is done.
func (e *Expansion) Err() error { return e.err }

func (e *Expansion) newExtension() *Volume {
	v := e.Volume
	extents := v.layout.RawGrowth(e.more)
	return &Volume{
		group:      v.group,
		volumeScan: volumeScan{layout: layout.Layout{Type: layout.Linear}, extents: extents, halfMade: true},
		recorded: recorded{newRecord(spec.NewVolumeID(), v.group, spec.Identity{
			Name: "extension/" + v.rec.ID, Class: v.rec.Ident.Class, Block: true,
			Size: spec.Size{Required: extents * v.group.info.ExtentSize},
		})},
	}
}

func extensionTags(extension *Volume) []string {
	return append(extension.rec.Ident.Tags(), spec.TagExtension)
}

func isExtension(tags []string) bool { return slices.Contains(tags, spec.TagExtension) }

// AdmitExpansion claims the volume and reserves the space. The caller then carries out the expansion;
// a deletion cancels one that has an extension. isNew is false if the caller only has to wait: the
// volume has the size already, or another caller expands it to that. Sizes are in bytes; limit is
// zero for none.
func (m *Inventory) AdmitExpansion(id string, required, limit int64, cancel func()) (e *Expansion, isNew bool, err error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	if err != nil {
		return nil, false, err
	}
	g := v.group
	switch {
	case v.isBusy() && v.expansion == nil || v.pins > 0:
		return nil, false, apierror.OperationPending("another operation on volume %s is under way", v.rec.ID)
	case v.rec.Phase != spec.Ready:
		return nil, false, apierror.OperationPending("the creation of volume %s is not finished", v.rec.ID)
	case !g.isUsable():
		return nil, false, apierror.DeviceMissing("volume group %q, or a device of it, is missing", g.name)
	}
	extents, err := v.rec.Ident.ExtentsWithin(required, limit, g.info.ExtentSize*v.layout.Unit())
	if err != nil {
		return nil, false, err
	}
	extents *= v.layout.Unit()
	e = &Expansion{Volume: v, Extents: extents, more: extents - v.extents, cancel: cancel, done: make(chan struct{})}
	switch running := v.expansion; {
	case e.more <= 0:
		close(e.done)
		return e, false, nil
	case running != nil && extents == running.Extents:
		return running, false, nil
	case running != nil:
		return nil, false, apierror.OperationPending("volume %s is being expanded to %s", v.rec.ID, quantity.Bytes(running.Extents*g.info.ExtentSize))
	}
	if v.pool == nil && m.mustBeZeroed(v.rec.Ident) {
		e.Extension = e.newExtension()
	}
	if err := m.checkExpansion(e); err != nil {
		return nil, false, err
	}
	v.reserveMore(e.more)
	e.reserved = true
	m.enter(v, Expanding)
	if e.Extension != nil {
		v.expansion = e
	}
	return e, true, nil
}

// checkExpansion rejects the expansion of a volume that others depend on, or that lacks free space in
// the group or its metadata.
func (m *model) checkExpansion(e *Expansion) error {
	v, more := e.Volume, e.more
	if err := v.dependents.refuse(v.group.name, v.rec.ID); err != nil {
		return err
	}
	g := v.group
	// A class that is no longer configured keeps no reserve.
	free := max(0, g.allocatable-g.creating-g.expanding)
	if v.pool != nil {
		free = v.pool.free()
	}
	reserve := int64(0)
	if c := m.class(v.rec.Ident.Class); c != nil && c.in(g) != nil {
		free, reserve = c.in(g).free(), c.in(g).reserved()
	}
	if g.placed && v.pool == nil {
		free = v.largestGrowth(reserve)
	}
	switch wanted, most := e.Extents*g.info.ExtentSize, mostExtents(v, reserve)*g.info.ExtentSize; {
	case wanted > most:
		return apierror.SizeOutOfRange("expanding volume %s to %s: all that its device class has in volume group %q is %s",
			v.rec.ID, quantity.Bytes(wanted), g.name, quantity.Bytes(most))
	case more > free:
		return apierror.NoSpace("expanding volume %s to %s, by %s: %s available",
			v.rec.ID, quantity.Bytes(wanted), quantity.Bytes(more*g.info.ExtentSize), quantity.Bytes(free*g.info.ExtentSize))
	}
	segments := max(1, min(more, g.fragments))
	text := layout.VolumeText(nil, v.layout.Segments(segments))
	if e.Extension != nil && !g.mayHaveMore() {
		return errTooMany(g, "expanding volume "+v.rec.ID+", which takes another one for a while")
	}
	if e.Extension != nil {
		text += layout.VolumeText(extensionTags(e.Extension), segments)
	}
	if !g.hasText(text) {
		return apierror.NoSpace("expanding volume %s: the metadata of volume group %q is full: it takes %s of at most %s",
			v.rec.ID, g.name, quantity.Bytes(g.metadata.Size), quantity.Bytes(g.metadata.Limit))
	}
	return nil
}

// mostExtents returns the size, in extents, that a volume could have if only the reserve were on the
// disks of its class.
func mostExtents(v *Volume, reserve int64) int64 {
	if v.pool != nil {
		return max(v.pool.limit(), v.extents)
	}
	return max(v.group.info.Extents-reserve, v.extents)
}

// End releases the volume, and what is still reserved, and gives the result to the callers that
// wait. If the expansion failed, it makes what may be left of the extension a tombstone, which it
// returns for the journal; nil if nothing is left.
func (e *Expansion) End(err error) (left *spec.Record) {
	v, g, x := e.Volume, e.Volume.group, e.Extension
	m := g.m
	m.lock()
	defer m.unlock()
	m.enter(v, v.lifecycle.released())
	v.expansion = nil
	e.release()
	if err != nil && x != nil {
		delete(g.extensions, x.rec.ID)
		if g.stale || g.exists[x.rec.ID] {
			m.add(x, Deleted)
			rec := x.rec
			left = &rec
		}
	}
	m.publish(g)
	e.err = err
	close(e.done)
	return left
}

// release releases the reservation, once.
func (e *Expansion) release() {
	if e.reserved {
		e.reserved = false
		e.Volume.reserveMore(-e.more)
	}
}

// PlanGrowth chooses the devices for an expansion, or none where LVM chooses. It fails if they lack the
// space. The caller has the group's slot.
func (e *Expansion) PlanGrowth() ([]layout.Share, error) {
	v := e.Volume
	m := v.group.m
	m.lock()
	defer m.unlock()
	if v.pool != nil {
		return nil, nil
	}
	return checkPlace(v.group, "volume "+v.rec.ID, v.layout, v.planGrowth(e.more), e.more)
}

// ChooseExtents chooses the extents by which a volume grows. It also returns the command that makes the
// extension on them, unless all are known to hold zeroes: then the volume can have them at once. p is
// the placement of the group, and segments that of the volume. The caller has the group's slot, and has
// just read p: the known zeroes belong to one sequence number, and another program that raised it may
// have written to free extents.
func (e *Expansion) ChooseExtents(p ondisk.Placement, segments []lvm.Segment) (on []layout.Share, extension *lvm.CreateOptions, err error) {
	v, g, x := e.Volume, e.Volume.group, e.Extension
	g.m.lock()
	defer g.m.unlock()
	free := g.info.FreeIn(p)
	if g.placed {
		free, _ = g.left(true, v)
	}
	on = v.layout.PlaceGrowthExactly(free, g.info.PathsOf(v.on), e.more, g.endsOf(segments))
	if on == nil {
		return nil, nil, apierror.NoSpace("expanding volume %s by %s: the free extents of volume group %q do not allow it",
			v.rec.ID, quantity.Bytes(e.more*g.info.ExtentSize), g.name)
	}
	if p.Seqno == g.metadata.Seqno && g.zeroes.Holds(lvm.Segment{Areas: g.areasOf(on)}) {
		return on, nil, nil
	}
	g.extensions[x.rec.ID] = true
	return on, &lvm.CreateOptions{
		Group: g.name, Volume: x.rec.ID, Layout: x.layout, Extents: x.extents, On: on,
		Tags: extensionTags(x), Options: []string{"--alloc", "normal"},
	}, nil
}

// SharesOf returns the devices and extents of segments in a group.
func (g *Group) SharesOf(segments []lvm.Segment) []layout.Share {
	m := g.m
	m.lock()
	defer m.unlock()
	return g.sharesOf(segments)
}

// Growth is the effect of the command that gave a volume the extents of an expansion: its
// segments now, or why these are unknown.
type Growth struct {
	e        *Expansion
	segments []lvm.Segment
	unmapped error
}

// Grown returns a Growth.
func Grown(e *Expansion, segments []lvm.Segment, unmapped error) Growth {
	return Growth{e, segments, unmapped}
}

func (c Growth) steps() uint64 { return 1 }
func (c Growth) delta() int64  { return -c.e.Volume.takesMore(c.e.more) }
func (c Growth) apply(*model) []*Volume {
	v := c.e.Volume
	c.e.release()
	if v.pool != nil {
		v.pool.virtual += c.e.more
		v.extents = c.e.Extents
	} else {
		c.grow()
	}
	return []*Volume{v}
}

func (c Growth) grow() {
	v, g := c.e.Volume, c.e.Volume.group
	g.taken(c.segments, v.bytes(), c.e.Extents*g.info.ExtentSize, c.unmapped)
	v.extents, v.segments = c.e.Extents, v.segments+min(c.e.more, g.fragments)
	v.occupy(c.segments, c.unmapped)
}

type extensionMade Growth

// ExtensionMade is the effect of the command that made an expansion's extension.
func ExtensionMade(e *Expansion, segments []lvm.Segment, unmapped error) Effect {
	return extensionMade{e, segments, unmapped}
}

func (c extensionMade) steps() uint64 { return 1 }
func (c extensionMade) delta() int64  { return -c.e.Extension.extents }
func (c extensionMade) apply(*model) []*Volume {
	c.e.release()
	x, g := c.e.Extension, c.e.Volume.group
	x.notZeroed = g.taken(c.segments, 0, x.bytes(), c.unmapped)
	x.segments = max(1, int64(len(c.segments)))
	g.foreign += x.segments
	g.exists[x.rec.ID] = true
	return nil
}

type extensionGiven struct {
	Growth
	zeroed []lvm.Segment
}

// ExtensionGiven is the effect of two commands: one removed the extension, which lay in the zeroed
// segments, and the other, with the effect given, added its extents to the volume.
func ExtensionGiven(given Growth, zeroed []lvm.Segment) Effect { return extensionGiven{given, zeroed} }

func (c extensionGiven) steps() uint64 { return 2 }
func (c extensionGiven) delta() int64  { return 0 }
func (c extensionGiven) apply(*model) []*Volume {
	x, g := c.e.Extension, c.e.Volume.group
	g.zeroes.Free(c.zeroed)
	c.grow()
	delete(g.exists, x.rec.ID)
	delete(g.extensions, x.rec.ID)
	g.foreign -= x.segments
	return []*Volume{c.e.Volume}
}
