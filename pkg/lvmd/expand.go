package lvmd

import (
	"context"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// expansion is the growth of one volume. The model's lock guards it.
type expansion struct {
	volume *volume
	// extents is what the volume is to have in all, and more by how much that is more
	// than it has. Where more is zero there is nothing to be done, and the volume was not
	// claimed.
	extents, more int64
	// zeroing is true when the new extents must read as zeroes before the volume has
	// them. The expansion goes on then when its callers have gone, and others join it.
	zeroing bool
	// extension holds the new extents until they read as zeroes; nil unless zeroing.
	extension *volume
	// reserved is true while the group's free space is reserved for the expansion.
	reserved bool
	// cancel ends it; it is nil before the expansion was begun in the background.
	cancel context.CancelFunc
	// done is closed at the end, when err is its result.
	done chan struct{}
	err  error
}

// ExpandVolume implements lvmdv1.LVMDServer. LVM's commit is the one effect,
// and a retry finds it done.
func (s *Service) ExpandVolume(ctx context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	if r.GetId() == "" {
		return nil, invalidField("id", "it is empty")
	}
	if r.GetRequiredBytes() < 1 {
		return nil, invalidField("required_bytes", "%d is not at least 1", r.GetRequiredBytes())
	}
	if l := r.GetLimitBytes(); l < 0 || l != 0 && l < r.GetRequiredBytes() {
		return nil, invalidField("limit_bytes", "%d is neither 0, for no limit, nor at least required_bytes, %d", l, r.GetRequiredBytes())
	}
	e, err := s.admitExpansion(r)
	if err != nil {
		return nil, err
	}
	v := e.volume
	switch {
	case e.more == 0:
	case e.zeroing:
		s.beginZeroed(e)
		select {
		case <-e.done:
			err = e.err
		case <-ctx.Done():
			err = ctx.Err()
		}
	default:
		err = s.extend(ctx, e)
	}
	if err == nil {
		err = s.growEncrypted(v)
	}
	if err != nil {
		return nil, publicError("expanding volume "+v.rec.ID, err)
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return &lvmdv1.ExpandVolumeResponse{Volume: v.proto()}, nil
}

// admitExpansion reserves the space and claims the volume, or finds an expansion under
// way that leads to what is asked for.
func (s *Service) admitExpansion(r *lvmdv1.ExpandVolumeRequest) (*expansion, error) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isStopping() {
		return nil, errStopping
	}
	v, err := m.lookup(r.GetId(), "")
	if err != nil {
		return nil, err
	}
	g := v.group
	switch {
	case v.op != nil || v.claimed && v.expansion == nil || v.pins > 0:
		return nil, operationPending("another operation on volume %s is under way", v.rec.ID)
	case v.rec.Phase != ready:
		return nil, operationPending("the creation of volume %s is not finished", v.rec.ID)
	case !g.present || g.info.MissingDevices > 0:
		return nil, deviceMissing("volume group %q, or a device of it, is missing", g.name)
	}
	extents, err := v.rec.Ident.extentsWithin(r.GetRequiredBytes(), r.GetLimitBytes(), g.info.ExtentSize*v.layout.Unit())
	if err != nil {
		return nil, err
	}
	extents *= v.layout.Unit()
	switch running := v.expansion; {
	case extents <= v.extents:
		return &expansion{volume: v}, nil
	case running != nil && extents == running.extents:
		return running, nil
	case running != nil:
		return nil, operationPending("volume %s is being expanded to %d bytes", v.rec.ID, running.extents*g.info.ExtentSize)
	}
	e := &expansion{volume: v, extents: extents, more: extents - v.extents, done: make(chan struct{})}
	e.zeroing = v.pool == nil && m.mustBeClean(v.rec.Ident)
	if e.zeroing {
		e.extension = e.newExtension()
	}
	if err := m.checkExpansion(e); err != nil {
		return nil, err
	}
	v.promiseMore(e.more)
	v.claimed, e.reserved = true, true
	if e.zeroing {
		v.expansion = e
	}
	return e, nil
}

// checkExpansion refuses what there is no free space for, in the group or in its
// metadata. The caller holds the model's lock.
func (m *model) checkExpansion(e *expansion) error {
	v, more := e.volume, e.more
	g := v.group
	// A class that is not configured any more keeps no reserve.
	room := max(0, g.allocatable-g.creating-g.expanding)
	if v.pool != nil {
		room = v.pool.freeRoom()
	}
	reserve := int64(0)
	if c := m.class(v.rec.Ident.Class); c != nil && c.in(g) != nil {
		room, reserve = c.in(g).room(), c.in(g).reserved()
	}
	if g.placed && v.pool == nil {
		room = v.growth(reserve)
	}
	if more > room {
		return noSpace("expanding volume %s by %d bytes: %d available", v.rec.ID, more*g.info.ExtentSize, room*g.info.ExtentSize)
	}
	pieces := max(1, min(more, g.fragments))
	text := lvm.VolumeText(nil, v.layout.Segments(pieces))
	if e.zeroing && !g.mayHaveMore() {
		return g.errTooMany("expanding volume " + v.rec.ID + ", which takes another one for a while")
	}
	if e.zeroing {
		text += lvm.VolumeText(extensionTags(e.extension), pieces)
	}
	if !g.hasText(text) {
		return noSpace("expanding volume %s: the metadata of volume group %q is full: it takes %d of at most %d bytes",
			v.rec.ID, g.name, g.metadata.Size, g.metadata.Limit)
	}
	return nil
}

// extend has LVM choose the new extents and add them to the volume: what they hold does
// not matter.
func (s *Service) extend(ctx context.Context, e *expansion) error {
	s.crash("expand: admitted")
	v, g := e.volume, e.volume.group
	s.model.mu.Lock()
	takes := v.grows(e.more)
	s.model.mu.Unlock()
	defer s.unclaim(v)
	var pieces []lvm.Piece
	var unmapped error
	err := s.change(onBehalfOf(ctx, v.rec.Ident.Owner), g, -takes,
		func(ctx context.Context) error {
			s.model.mu.Lock()
			on := v.planGrowth(e.more)
			s.model.mu.Unlock()
			err := s.lvm.Extend(forClassOf(ctx, v), g.name, v.rec.ID, e.extents, on...)
			if err == nil {
				pieces, unmapped = s.lvm.Mapping(g.name, v.rec.ID)
			}
			return err
		},
		func() []*volume {
			e.release()
			if v.pool != nil {
				v.pool.virtual += e.more
				v.extents = e.extents
			} else {
				e.grown(pieces, unmapped)
			}
			return []*volume{v}
		})
	if err != nil {
		s.model.mu.Lock()
		e.release()
		s.model.publish(g)
		s.model.mu.Unlock()
	}
	return err
}

// grown notes that the volume has its new extents, and where they lie. The caller holds
// the model's lock.
func (e *expansion) grown(pieces []lvm.Piece, unmapped error) {
	v, g := e.volume, e.volume.group
	g.taken(pieces, v.extents*g.info.ExtentSize, e.extents*g.info.ExtentSize, unmapped)
	v.extents, v.segments = e.extents, v.segments+min(e.more, g.fragments)
	v.occupy(pieces, unmapped)
}
