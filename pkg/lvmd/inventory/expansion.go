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

// Expansion is the growth of one volume. Its exported methods need no lock: what they return
// does not change.
type Expansion struct {
	volume *Volume
	// extents is what the volume is to have in all, and more by how much that is more
	// than it has. Where more is zero there is nothing to be done, and the volume was not
	// claimed.
	extents, more int64
	// zeroing is true when the new extents must read as zeroes before the volume has
	// them. The expansion goes on then when its callers have gone, and others join it.
	zeroing bool
	// extension holds the new extents until they read as zeroes; nil unless zeroing.
	extension *Volume
	// reserved is true while the group's free space is reserved for the expansion.
	reserved bool
	// cancel ends it; it is nil before the expansion was begun in the background.
	cancel func()
	// done is closed at the end, when err is its result.
	done chan struct{}
	err  error
}

// Volume is what grows.
func (e *Expansion) Volume() *Volume { return e.volume }

// Extension is the logical volume that holds the new extents until they read as zeroes.
func (e *Expansion) Extension() *Volume { return e.extension }

// Extents is what the volume is to have in all.
func (e *Expansion) Extents() int64 { return e.extents }

// IsDone reports whether the volume has them already.
func (e *Expansion) IsDone() bool { return e.more == 0 }

// IsZeroing reports whether the new extents must read as zeroes before the volume has them.
func (e *Expansion) IsZeroing() bool { return e.zeroing }

// Done is closed at the end.
func (e *Expansion) Done() <-chan struct{} { return e.done }

// Err is the result once it is done.
func (e *Expansion) Err() error { return e.err }

// newExtension describes the logical volume that holds the extents of an expansion.
func (e *Expansion) newExtension() *Volume {
	v := e.volume
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

// isExtension reports whether tags are those of an extension.
func isExtension(tags []string) bool { return slices.Contains(tags, spec.TagExtension) }

// AdmitExpansion reserves the space and claims the volume, or finds an expansion under
// way that leads to what is asked for. Sizes are in bytes; a limit of zero is none.
func (m *Inventory) AdmitExpansion(id string, required, limit int64) (*Expansion, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	if err != nil {
		return nil, err
	}
	g := v.group
	switch {
	case v.isBusy() && v.expansion == nil || v.pins > 0:
		return nil, apierror.OperationPending("another operation on volume %s is under way", v.rec.ID)
	case v.rec.Phase != spec.Ready:
		return nil, apierror.OperationPending("the creation of volume %s is not finished", v.rec.ID)
	case !g.isUsable():
		return nil, apierror.DeviceMissing("volume group %q, or a device of it, is missing", g.name)
	}
	extents, err := v.rec.Ident.ExtentsWithin(required, limit, g.info.ExtentSize*v.layout.Unit())
	if err != nil {
		return nil, err
	}
	extents *= v.layout.Unit()
	switch running := v.expansion; {
	case extents <= v.extents:
		return &Expansion{volume: v}, nil
	case running != nil && extents == running.extents:
		return running, nil
	case running != nil:
		return nil, apierror.OperationPending("volume %s is being expanded to %s", v.rec.ID, quantity.Bytes(running.extents*g.info.ExtentSize))
	}
	e := &Expansion{volume: v, extents: extents, more: extents - v.extents, done: make(chan struct{})}
	e.zeroing = v.pool == nil && m.mustBeZeroed(v.rec.Ident)
	if e.zeroing {
		e.extension = e.newExtension()
	}
	if err := m.checkExpansion(e); err != nil {
		return nil, err
	}
	v.reserveMore(e.more)
	e.reserved = true
	m.enter(v, Expanding)
	if e.zeroing {
		v.expansion = e
	}
	return e, nil
}

// checkExpansion refuses what something depends on, or there is no free space for, in the
// group or in its metadata.
func (m *model) checkExpansion(e *Expansion) error {
	v, more := e.volume, e.more
	if err := v.dependents.refuse(v.group.name, v.rec.ID); err != nil {
		return err
	}
	g := v.group
	// A class that is not configured any more keeps no reserve.
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
	switch wanted, most := e.extents*g.info.ExtentSize, mostExtents(v, reserve)*g.info.ExtentSize; {
	case wanted > most:
		return apierror.SizeOutOfRange("expanding volume %s to %s: all that its device class has in volume group %q is %s",
			v.rec.ID, quantity.Bytes(wanted), g.name, quantity.Bytes(most))
	case more > free:
		return apierror.NoSpace("expanding volume %s to %s, by %s: %s available",
			v.rec.ID, quantity.Bytes(wanted), quantity.Bytes(more*g.info.ExtentSize), quantity.Bytes(free*g.info.ExtentSize))
	}
	segments := max(1, min(more, g.fragments))
	text := layout.VolumeText(nil, v.layout.Segments(segments))
	if e.zeroing && !g.mayHaveMore() {
		return errTooMany(g, "expanding volume "+v.rec.ID+", which takes another one for a while")
	}
	if e.zeroing {
		text += layout.VolumeText(extensionTags(e.extension), segments)
	}
	if !g.hasText(text) {
		return apierror.NoSpace("expanding volume %s: the metadata of volume group %q is full: it takes %s of at most %s",
			v.rec.ID, g.name, quantity.Bytes(g.metadata.Size), quantity.Bytes(g.metadata.Limit))
	}
	return nil
}

// mostExtents is how many extents a volume can have at most where nothing else is on the disks of
// its class, besides a reserve of so many.
func mostExtents(v *Volume, reserve int64) int64 {
	if v.pool != nil {
		return max(v.pool.limit(), v.extents)
	}
	return max(v.group.info.Extents-reserve, v.extents)
}

// Begin has an expansion that is zeroing cancelled by cancel. It returns false when it
// has begun already.
func (e *Expansion) Begin(cancel func()) bool {
	m := e.volume.group.m
	m.lock()
	defer m.unlock()
	if e.cancel != nil {
		return false
	}
	e.cancel = cancel
	return true
}

// End releases the volume, and what is still reserved, and gives the result to the
// callers that wait for Done.
func (e *Expansion) End(err error) {
	m := e.volume.group.m
	m.lock()
	defer m.unlock()
	m.enter(e.volume, e.volume.lifecycle.Released())
	e.volume.expansion = nil
	e.release()
	m.publish(e.volume.group)
	e.err = err
	close(e.done)
}

// release gives back what is reserved for the expansion, once.
func (e *Expansion) release() {
	if e.reserved {
		e.reserved = false
		e.volume.reserveMore(-e.more)
	}
}

// PlanGrowth chooses the devices for an expansion; none where LVM is to choose. It fails when they
// have no place for it. The caller has the group's slot.
func (e *Expansion) PlanGrowth() ([]layout.Share, error) {
	v := e.volume
	m := v.group.m
	m.lock()
	defer m.unlock()
	if v.pool != nil {
		return nil, nil
	}
	return checkPlace(v.group, "volume "+v.rec.ID, v.layout, v.planGrowth(e.more), e.more)
}

// ChooseExtents names the very extents by which a volume grows, and reports whether all of
// them are known to hold zeroes. p is where everything lies in the group, and segments where the
// volume does. The caller has the group's slot, and has just read p: what is known of zeroes is
// true of one sequence number, and another program that raised it may have written to free extents.
func (e *Expansion) ChooseExtents(p ondisk.Placement, segments []lvm.Segment) (on []layout.Share, zeroed bool, err error) {
	m := e.volume.group.m
	m.lock()
	defer m.unlock()
	v, g := e.volume, e.volume.group
	free := g.info.FreeIn(p)
	if g.placed {
		free, _ = g.left(true, v)
	}
	on = v.layout.PlaceGrowthExactly(free, g.info.PathsOf(v.on), e.more, g.endsOf(segments))
	if on == nil {
		return nil, false, apierror.NoSpace("expanding volume %s by %s: the free extents of volume group %q do not allow it",
			v.rec.ID, quantity.Bytes(e.more*g.info.ExtentSize), g.name)
	}
	return on, p.Seqno == g.metadata.Seqno && g.zeroes.Holds(lvm.Segment{Areas: g.areasOf(on)}), nil
}

// ExtensionOptions are those of the command that makes an extension on the given extents. From now
// on scans take it for part of the expansion.
func (e *Expansion) ExtensionOptions(on []layout.Share) lvm.CreateOptions {
	m := e.volume.group.m
	m.lock()
	defer m.unlock()
	x := e.extension
	x.group.extensions[x.rec.ID] = true
	return lvm.CreateOptions{
		Group: x.group.name, Volume: x.rec.ID, Layout: x.layout, Extents: x.extents, On: on,
		Tags: extensionTags(x), Options: []string{"--alloc", "normal"},
	}
}

// SharesOf names the devices and extents that segments in a group lie on.
func (g *Group) SharesOf(segments []lvm.Segment) []layout.Share {
	m := g.m
	m.lock()
	defer m.unlock()
	return g.sharesOf(segments)
}

// DropExtension makes what may be left of an extension a tombstone, which the journal is to have.
// It returns false when nothing is left.
func (e *Expansion) DropExtension() (rec spec.Record, left bool) {
	m := e.volume.group.m
	m.lock()
	defer m.unlock()
	x, g := e.extension, e.volume.group
	delete(g.extensions, x.rec.ID)
	left = g.stale || g.exists[x.rec.ID]
	if left {
		m.add(x, Deleted)
	}
	return x.rec, left
}

// Growth is the effect of the command that gave a volume the extents of an expansion: the
// segments that the volume lies in now, or why these are not known.
type Growth struct {
	e        *Expansion
	segments []lvm.Segment
	unmapped error
}

// Grown makes a Growth.
func Grown(e *Expansion, segments []lvm.Segment, unmapped error) Growth {
	return Growth{e, segments, unmapped}
}

func (c Growth) steps() uint64 { return 1 }
func (c Growth) delta() int64  { return -c.e.volume.takesMore(c.e.more) }
func (c Growth) apply(*model) []*Volume {
	v := c.e.volume
	c.e.release()
	if v.pool != nil {
		v.pool.virtual += c.e.more
		v.extents = c.e.extents
	} else {
		c.grow()
	}
	return []*Volume{v}
}

// grow notes that a volume that is not thin has its new extents, and where they lie.
func (c Growth) grow() {
	v, g := c.e.volume, c.e.volume.group
	g.taken(c.segments, v.bytes(), c.e.extents*g.info.ExtentSize, c.unmapped)
	v.extents, v.segments = c.e.extents, v.segments+min(c.e.more, g.fragments)
	v.occupy(c.segments, c.unmapped)
}

// extensionMade is an extension that LVM has made.
type extensionMade Growth

// ExtensionMade is the effect of the command that made an expansion's extension.
func ExtensionMade(e *Expansion, segments []lvm.Segment, unmapped error) Effect {
	return extensionMade{e, segments, unmapped}
}

func (c extensionMade) steps() uint64 { return 1 }
func (c extensionMade) delta() int64  { return -c.e.extension.extents }
func (c extensionMade) apply(*model) []*Volume {
	c.e.release()
	x, g := c.e.extension, c.e.volume.group
	x.notZeroed = g.taken(c.segments, 0, x.bytes(), c.unmapped)
	x.segments = max(1, int64(len(c.segments)))
	g.foreign += x.segments
	g.exists[x.rec.ID] = true
	return nil
}

// extensionGiven is an extension that is no more, and whose extents the volume has.
type extensionGiven struct {
	Growth
	zeroed []lvm.Segment
}

// ExtensionGiven is the effect of two commands: one removed an extension, which lay in the
// segments zeroed, and the other had the effect given, by which the volume has its extents.
func ExtensionGiven(given Growth, zeroed []lvm.Segment) Effect { return extensionGiven{given, zeroed} }

func (c extensionGiven) steps() uint64 { return 2 }
func (c extensionGiven) delta() int64  { return 0 }
func (c extensionGiven) apply(*model) []*Volume {
	x, g := c.e.extension, c.e.volume.group
	g.zeroes.Free(c.zeroed)
	c.grow()
	delete(g.exists, x.rec.ID)
	delete(g.extensions, x.rec.ID)
	g.foreign -= x.segments
	return []*Volume{c.e.volume}
}
