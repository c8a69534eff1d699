package lvmd

import (
	"context"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// ExpandVolume implements lvmdv1.LVMDServer. LVM's commit is the one effect,
// and a retry finds it done; for raw volumes, whose new space must be clear, the
// journal holds from where on until it is.
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
	v, extents, more, unclean, err := s.admitExpansion(r)
	if err != nil {
		return nil, err
	}
	s.crash("expand: admitted")
	switch {
	case more > 0:
		err = s.extend(ctx, v, extents, more)
	case unclean != nil:
		err = s.clearGrown(ctx, v, unclean)
		s.unclaim(v)
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

// admitExpansion promises the room and claims the volume. It returns how many
// extents the volume is to have in all, and how many more that is; when it has
// enough, more is zero, and nothing was claimed unless the journal has an earlier expansion
// that did not end: unclean is then what that left to clear, not nil even where it is nothing.
func (s *Service) admitExpansion(r *lvmdv1.ExpandVolumeRequest) (v *volume, extents, more int64, unclean spans, err error) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isStopping() {
		return nil, 0, 0, nil, errStopping
	}
	v, err = m.lookup(r.GetId(), "")
	if err != nil {
		return nil, 0, 0, nil, err
	}
	g := v.group
	switch {
	case v.op != nil || v.claimed || v.pins > 0:
		return nil, 0, 0, nil, operationPending("another operation on volume %s is under way", v.rec.ID)
	case v.rec.Phase != ready:
		return nil, 0, 0, nil, operationPending("the creation of volume %s is not finished", v.rec.ID)
	case !g.present || g.info.MissingDevices > 0:
		return nil, 0, 0, nil, deviceMissing("volume group %q, or a device of it, is missing", g.name)
	}
	extents, err = v.rec.Ident.extentsWithin(r.GetRequiredBytes(), r.GetLimitBytes(), g.info.ExtentSize*v.layout.Unit())
	if err != nil {
		return nil, 0, 0, nil, err
	}
	extents *= v.layout.Unit()
	if extents <= v.extents {
		if v.rec.ClearFrom != 0 {
			v.claimed = true
			unclean = spans{}.plus(span{v.rec.ClearFrom, v.extents * g.info.ExtentSize})
		}
		return v, 0, 0, unclean, nil
	}
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
	more = extents - v.extents
	if more > room {
		return nil, 0, 0, nil, noSpace("expanding volume %s by %d bytes: %d available", v.rec.ID, more*g.info.ExtentSize, room*g.info.ExtentSize)
	}
	if !g.hasText(lvm.VolumeText(nil, v.layout.Segments(max(1, min(more, g.fragments))))) {
		return nil, 0, 0, nil, noSpace("expanding volume %s: the metadata of volume group %q is full: it takes %d of at most %d bytes",
			v.rec.ID, g.name, g.metadata.Size, g.metadata.Limit)
	}
	v.promiseMore(more)
	v.claimed = true
	return v, extents, more, nil, nil
}

func (s *Service) extend(ctx context.Context, v *volume, extents, more int64) error {
	g := v.group
	s.model.mu.Lock()
	before, after := v.extents*g.info.ExtentSize, extents*g.info.ExtentSize
	takes := v.grows(more)
	clearing := v.pool == nil && s.model.mustBeClean(v.rec.Ident)
	s.model.mu.Unlock()
	defer s.unclaim(v)
	err := error(nil)
	if clearing && v.rec.ClearFrom == 0 {
		intent := v.rec
		intent.ClearFrom = before
		if err = s.journal.put(intent); err == nil {
			s.model.mu.Lock()
			v.rec.ClearFrom = before
			s.model.mu.Unlock()
		}
	}
	var pieces []lvm.Piece
	var unmapped error
	var unclean spans
	if err == nil {
		err = s.change(onBehalfOf(ctx, v.rec.Ident.Owner), g, -takes,
			func(ctx context.Context) error {
				s.model.mu.Lock()
				on := v.planGrowth(more)
				s.model.mu.Unlock()
				err := s.lvm.Extend(forClassOf(ctx, v), g.name, v.rec.ID, extents, on...)
				if err == nil {
					pieces, unmapped = s.lvm.Mapping(g.name, v.rec.ID)
				}
				return err
			},
			func() []*volume {
				v.promiseMore(-more)
				if v.pool != nil {
					v.pool.virtual += more
					v.extents = extents
					return []*volume{v}
				}
				unclean = g.taken(pieces, v.rec.ClearFrom, after, unmapped)
				v.extents, v.segments = extents, v.segments+min(more, g.fragments)
				v.occupy(pieces, unmapped)
				return []*volume{v}
			})
	}
	if err != nil {
		s.model.mu.Lock()
		v.promiseMore(-more)
		s.model.publish(g)
		s.model.mu.Unlock()
		return err
	}
	if !clearing {
		return nil
	}
	s.crash("expand: grown")
	return s.clearGrown(ctx, v, unclean)
}
