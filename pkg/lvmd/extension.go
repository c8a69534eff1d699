package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// A raw volume shows its user every byte that it has. The extents by which it grows are
// therefore zeroed first, in a logical volume of their own, the extension, which has no
// other user. Then one slot of the group removes the extension and adds exactly its extents
// to the volume. No byte is written to an extent after the volume's user can see it, and
// the volume's size changes once. When lvmd ends in between, the next scan finds the
// extension by its tag and removes it; the expansion begins again when it is requested again.

// newExtension describes the logical volume that holds the extents of an expansion.
func (e *expansion) newExtension() *volume {
	v := e.volume
	extents := v.layout.RawGrowth(e.more)
	return &volume{
		group: v.group, layout: lvm.Layout{Type: lvm.Linear}, extents: extents, halfMade: true,
		rec: record{
			ID: newID(), Group: v.group.name, Phase: creating, Created: time.Now().UTC().Truncate(time.Millisecond),
			Ident: identity{
				Name: "extension/" + v.rec.ID, Class: v.rec.Ident.Class, Block: true,
				Required: extents * v.group.info.ExtentSize,
			},
		},
	}
}

func extensionTags(extension *volume) []string {
	return append(extension.rec.Ident.tags(), tagExtension)
}

// isExtension reports whether tags are those of an extension.
func isExtension(tags []string) bool { return slices.Contains(tags, tagExtension) }

// beginZeroed carries out an expansion in the background, unless that has begun already.
func (s *Service) beginZeroed(e *expansion) {
	v := e.volume
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if e.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(onBehalfOf(s.work, v.rec.Ident.Owner))
	e.cancel = cancel
	s.spawn(func() {
		defer cancel()
		err := s.extendZeroed(ctx, e)
		s.model.mu.Lock()
		v.claimed, v.expansion = false, nil
		e.release()
		s.model.publish(v.group)
		e.err = err
		s.model.mu.Unlock()
		close(e.done)
	})
}

// release gives back what was reserved for the expansion, once. The caller holds the
// model's lock.
func (e *expansion) release() {
	if e.reserved {
		e.reserved = false
		e.volume.promiseMore(-e.more)
	}
}

// extendZeroed makes a volume larger by extents that read as zeroes.
func (s *Service) extendZeroed(ctx context.Context, e *expansion) error {
	s.crash("expand: admitted")
	g := e.volume.group
	done, err := s.allocate(ctx, e)
	if err == nil && !done {
		s.crash("expand: extension made")
		if err = s.zeroExtension(ctx, e); err == nil {
			s.crash("expand: extension zeroed")
			err = s.giveExtension(ctx, e)
		}
	}
	if err != nil {
		s.dropExtension(e)
		return err
	}
	s.crash("expand: grown")
	if err := s.journal.do(s.remember(g)); err != nil {
		s.log.Warn("what is known to be zero in a volume group will be forgotten at the next start", "group", g.name, "error", err)
	}
	return nil
}

// allocate takes the extents for an expansion. Where all of them are known to hold zeroes,
// the volume gets them at once and done is true; otherwise the extension does.
func (s *Service) allocate(ctx context.Context, e *expansion) (done bool, err error) {
	v, g, x := e.volume, e.volume.group, e.extension
	var pieces []lvm.Piece
	var unmapped error
	grower := v.rec.ID
	s.model.mu.Lock()
	g.extensions[x.rec.ID] = true
	s.model.mu.Unlock()
	err = s.change(ctx, g, -x.extents,
		func(ctx context.Context) error {
			on, zeroed, err := s.chooseExtents(e)
			if err != nil {
				return err
			}
			if done = zeroed; done {
				err = s.lvm.Extend(forClassOf(ctx, v), g.name, v.rec.ID, e.extents, on...)
			} else {
				grower = x.rec.ID
				err = s.lvm.Create(forClassOf(ctx, v), lvm.CreateOptions{
					Group: g.name, Volume: x.rec.ID, Layout: x.layout, Extents: x.extents, On: on,
					Tags: extensionTags(x), Options: []string{"--alloc", "normal"},
				})
			}
			if err == nil {
				pieces, unmapped = s.lvm.Mapping(g.name, grower)
			}
			return err
		},
		func() []*volume {
			e.release()
			if done {
				e.grown(pieces, unmapped)
				return []*volume{v}
			}
			x.unclean = g.taken(pieces, 0, x.extents*g.info.ExtentSize, unmapped)
			x.segments = max(1, int64(len(pieces)))
			g.foreign += x.segments
			g.exists[x.rec.ID] = true
			return nil
		})
	if done && err == nil {
		s.model.mu.Lock()
		delete(g.extensions, x.rec.ID)
		s.model.mu.Unlock()
	}
	return done, err
}

// chooseExtents names the very extents by which a volume grows, and reports whether all of
// them are known to hold zeroes. The caller has the group's slot.
func (s *Service) chooseExtents(e *expansion) (on []lvm.Share, zeroed bool, err error) {
	v, g := e.volume, e.volume.group
	p, err := s.lvm.Placement(g.name)
	if err != nil {
		return nil, false, fmt.Errorf("reading which extents are free: %w", err)
	}
	pieces, err := s.lvm.Mapping(g.name, v.rec.ID)
	if err != nil {
		return nil, false, err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	free := g.info.FreeIn(p)
	if g.placed {
		free, _ = g.left(true, v)
	}
	on = v.layout.PlaceGrowthExactly(free, g.info.PathsOf(v.on), e.more, g.endsOf(pieces))
	if on == nil {
		return nil, false, noSpace("expanding volume %s by %d bytes: the free extents of volume group %q do not allow it",
			v.rec.ID, e.more*g.info.ExtentSize, g.name)
	}
	return on, g.clean.holds(lvm.Piece{Areas: g.areasOf(on)}), nil
}

// zeroExtension makes the extension read as zeroes, durably.
func (s *Service) zeroExtension(ctx context.Context, e *expansion) error {
	h, err := s.open(ctx, e.extension)
	if err != nil {
		return fmt.Errorf("the device of the new extents: %w", err)
	}
	err = s.zero(ctx, h, e.extension.unclean)
	if err = errors.Join(err, h.Close()); err != nil {
		return fmt.Errorf("zeroing the new extents: %w", err)
	}
	return nil
}

// giveExtension removes the extension and adds its extents to the volume, in one slot of the
// group. Where they are is read again: an administrator may have moved them meanwhile.
func (s *Service) giveExtension(ctx context.Context, e *expansion) error {
	v, g, x := e.volume, e.volume.group, e.extension
	var zeroed, pieces []lvm.Piece
	var unmapped error
	return s.changeBy(ctx, g, 2, 0,
		func(ctx context.Context) (err error) {
			if zeroed, err = s.lvm.Mapping(g.name, x.rec.ID); err != nil {
				return err
			}
			s.model.mu.Lock()
			on := g.sharesOf(zeroed)
			s.model.mu.Unlock()
			if err := s.lvm.Remove(forClassOf(ctx, v), g.name, []string{x.rec.ID}); err != nil {
				return err
			}
			s.crash("expand: extension removed")
			if err := s.lvm.Extend(forClassOf(ctx, v), g.name, v.rec.ID, e.extents, on...); err != nil {
				return err
			}
			pieces, unmapped = s.lvm.Mapping(g.name, v.rec.ID)
			return nil
		},
		func() []*volume {
			g.clean.give(zeroed)
			e.grown(pieces, unmapped)
			delete(g.exists, x.rec.ID)
			delete(g.extensions, x.rec.ID)
			g.foreign -= x.segments
			return []*volume{v}
		})
}

// dropExtension makes what is left of an extension a tombstone.
func (s *Service) dropExtension(e *expansion) {
	x, g := e.extension, e.volume.group
	s.model.mu.Lock()
	delete(g.extensions, x.rec.ID)
	left := g.stale || g.exists[x.rec.ID]
	if left {
		x.rec.Phase = deleting
		s.model.add(x)
	}
	rec := x.rec
	s.model.mu.Unlock()
	if !left {
		return
	}
	if err := s.journal.put(rec); err != nil {
		// Its tag says the same at the next start.
		s.log.Warn("an extension's tombstone is not in the journal", "volume", e.volume.rec.ID, "extension", rec.ID, "error", err)
	}
	g.wakeReaper()
}

// endsOf says where on each device, by path, the last piece of a volume ends, in extents.
// The caller holds the model's lock.
func (g *group) endsOf(pieces []lvm.Piece) map[string]int64 {
	ends := map[string]int64{}
	if len(pieces) == 0 {
		return ends
	}
	for _, s := range g.sharesOf(pieces[len(pieces)-1:]) {
		for _, r := range s.Runs {
			ends[s.Device] = max(ends[s.Device], r.Start+r.Length)
		}
	}
	return ends
}

// sharesOf names the devices and extents that pieces lie on. The caller holds the model's
// lock.
func (g *group) sharesOf(pieces []lvm.Piece) []lvm.Share {
	var shares []lvm.Share
	for _, p := range pieces {
		for _, a := range p.Areas {
			i := slices.IndexFunc(g.info.Devices, func(d lvm.PhysicalVolume) bool { return d.UUID == a.Device })
			if i < 0 {
				continue
			}
			d := &g.info.Devices[i]
			shares = lvm.Join(shares, lvm.Share{
				Device: d.Path, Extents: a.Length / g.info.ExtentSize,
				Runs: []lvm.Run{{Start: (a.Start - d.DataOffset) / g.info.ExtentSize, Length: a.Length / g.info.ExtentSize}},
			})
		}
	}
	return shares
}

// areasOf is the reverse of sharesOf. The caller holds the model's lock.
func (g *group) areasOf(shares []lvm.Share) []lvm.Area {
	var areas []lvm.Area
	for _, s := range shares {
		i := slices.IndexFunc(g.info.Devices, func(d lvm.PhysicalVolume) bool { return d.Path == s.Device })
		if i < 0 {
			continue
		}
		d := &g.info.Devices[i]
		for _, r := range s.Runs {
			areas = append(areas, lvm.Area{
				Device: d.UUID, Start: d.DataOffset + r.Start*g.info.ExtentSize, Length: r.Length * g.info.ExtentSize,
			})
		}
	}
	return areas
}
