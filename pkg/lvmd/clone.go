package lvmd

import (
	"context"
	"errors"
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
)

// making is how a volume or snapshot is being made of another one. The model's
// lock guards it.
type making struct {
	// source is pinned: it is neither deleted nor expanded meanwhile. It is nil
	// when only the enlargement is left to be done.
	source *volume
	// snapshot is true when it is made by a snapshot in the source's pool, and
	// false when the source is copied.
	snapshot bool
	// have is how many extents the volume has of those that it will have.
	have int64
	// handle is the source's device while it is copied, and copied how much of
	// it is.
	handle lvm.Handle
	copied int64
}

// make notes what a volume is made of. The caller holds the model's lock.
func (v *volume) make(from *making) {
	v.making = from
	from.source.pins++
}

// made ends that. The caller holds the model's lock.
func (v *volume) made() {
	from := v.making
	if from == nil {
		return
	}
	v.making = nil
	if from.source != nil {
		from.source.pins--
	}
	if from.handle != nil {
		_ = from.handle.Close()
	}
}

// tags are the volume's when it is created.
func (v *volume) tags() []string {
	t := v.rec.Ident.tags()
	if v.making != nil && !v.making.snapshot {
		t = append(t, tagCopying)
	}
	return t
}

// sourceOf reads a request's source.
func sourceOf(r *lvmdv1.VolumeSource) (string, error) {
	snapshot, volume := r.GetSnapshotId(), r.GetVolumeId()
	switch {
	case (snapshot == "") == (volume == ""):
		return "", invalidField("source", "exactly one of snapshot_id and volume_id must be set")
	case snapshot != "" && !snapshotPattern.MatchString(snapshot):
		return "", invalidField("source.snapshot_id", "%q is not a snapshot's id", snapshot)
	case volume != "" && !idPattern.MatchString(volume):
		return "", invalidField("source.volume_id", "%q is not a volume's id", volume)
	}
	return snapshot + volume, nil
}

// source is what sourceOf read.
func (i identity) source() *lvmdv1.VolumeSource {
	switch {
	case i.Source == "":
		return nil
	case snapshotPattern.MatchString(i.Source):
		return &lvmdv1.VolumeSource{SnapshotId: i.Source}
	}
	return &lvmdv1.VolumeSource{VolumeId: i.Source}
}

// chooseFor picks the group for a volume that is made of another one, and how
// it is made; it completes the identity. The caller holds the model's lock.
func (m *model) chooseFor(c *class, ident *identity) (*part, fit, *making, error) {
	source, err := m.sourceVolume(ident.Source)
	if err != nil {
		return nil, fit{}, nil, err
	}
	if err := source.notEncrypted("source"); err != nil {
		return nil, fit{}, nil, err
	}
	from := source.rec.Ident
	switch {
	case from.Block != ident.Block:
		return nil, fit{}, nil, invalidField("mode", "%s is of another mode", ident.Source)
	case from.FSType != ident.FSType:
		return nil, fit{}, nil, invalidField("fs_type", "%q; the file system of %s is %s", ident.FSType, ident.Source, from.FSType)
	}
	if err := from.cloneable("source", ident.Source); err != nil {
		return nil, fit{}, nil, err
	}
	if !filesystem.SharesNoUUID(ident.FSType) {
		ident.FSUUID = from.FSUUID
	}
	ident.atLeast = source.extents * source.group.info.ExtentSize
	if source.pool != nil {
		for _, p := range c.parts {
			if p.pool == source.pool {
				f, _, err := p.place(*ident)
				return p, f, &making{source: source, snapshot: true}, err
			}
		}
	}
	if from.Snapshot {
		return nil, fit{}, nil, notThin("snapshot %s lies in thin pool %q of volume group %q, which device class %q has not",
			ident.Source, source.pool.name, source.group.name, c.Name)
	}
	p, f, err := c.choose(*ident)
	return p, f, &making{source: source}, err
}

// carveFrom is carve for what is made of another volume. On failure nothing of
// it is left, or a tombstone.
func (s *Service) carveFrom(ctx context.Context, v *volume) error {
	from := v.making
	if !from.snapshot {
		return s.carveCopy(ctx, v)
	}
	if err := s.journal.put(v.rec); err != nil {
		s.undoPromise(v)
		return err
	}
	s.crash("clone: intent written")
	g, p := v.group, v.pool
	err := s.changeBy(ctx, g, lvm.ThinSteps, 0,
		func(ctx context.Context) error {
			return s.lvm.Snapshot(forClassOf(ctx, v), lvm.SnapshotOptions{
				Group: g.name, Origin: from.source.rec.ID, Volume: v.rec.ID,
				Tags: v.tags(), Inactive: v.rec.Ident.Snapshot,
			})
		},
		func() []*volume {
			v.redeem()
			from.have = from.source.extents
			p.virtual += from.have
			p.expanding += v.extents - from.have
			g.exists[v.rec.ID] = true
			return nil
		})
	if errors.Is(err, lvm.ErrNotFound) {
		err = &failureBehindOurBack{from.source.rec.ID, err}
	}
	return s.carved(ctx, v, err)
}

// failureBehindOurBack is a source that vanished while something was made of it.
type failureBehindOurBack struct {
	id    string
	cause error
}

func (f *failureBehindOurBack) Error() string {
	return fmt.Sprintf("%s was removed behind our back: %v", f.id, f.cause)
}
func (f *failureBehindOurBack) Unwrap() error { return f.cause }

// fillFrom brings a volume that LVM has made to what its source holds.
func (s *Service) fillFrom(ctx context.Context, v *volume) error {
	if v.rec.Ident.Snapshot {
		return ctx.Err()
	}
	device, err := s.lvm.Device(v.group.name, v.rec.ID)
	s.model.mu.Lock()
	if err == nil {
		v.device, v.conditions = device, nil
	}
	if v.making == nil {
		s.model.resumeEnlarging(v)
	}
	from := v.making
	s.model.mu.Unlock()
	switch {
	case from == nil:
		// The journal was lost when all was done but to say so.
	case from.snapshot:
		return s.enlarge(ctx, v, err)
	case err == nil:
		return s.copyFrom(ctx, v)
	}
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	return ctx.Err()
}

// tooSmall tells whether a volume that was made by a snapshot is yet to be
// enlarged to what was asked for. The caller holds the lock.
func (m *model) tooSmall(v *volume) bool {
	if v.pool == nil || v.rec.Ident.Source == "" || v.rec.Ident.Snapshot {
		return false
	}
	want, err := v.rec.Ident.extentsFor(v.group.info.ExtentSize)
	return err == nil && want > v.extents
}

// resumeEnlarging promises what a volume that was adopted lacks of its size, as
// far as there is room. The caller holds the lock.
func (m *model) resumeEnlarging(v *volume) {
	if !m.tooSmall(v) {
		return
	}
	want, _ := v.rec.Ident.extentsFor(v.group.info.ExtentSize)
	v.making = &making{snapshot: true, have: v.extents}
	v.pool.expanding += want - v.extents
	v.extents = want
}

// enlarge gives a volume that was made by a snapshot the rest of its size,
// unless failed says that something went wrong before.
func (s *Service) enlarge(ctx context.Context, v *volume, failed error) error {
	g, p := v.group, v.pool
	s.model.mu.Lock()
	from := v.making
	more := v.extents - from.have
	if failed == nil && more > 0 && p.room(p.virtual+p.creating+p.expanding-more) < more {
		failed = noSpace("enlarging the volume by %d bytes: thin pool %q has no room left", more*g.info.ExtentSize, p.name)
	}
	s.model.mu.Unlock()
	err := errors.Join(failed, ctx.Err())
	if err == nil && more > 0 {
		err = s.changeBy(ctx, g, 1, 0,
			func(ctx context.Context) error { return s.lvm.Extend(forClassOf(ctx, v), g.name, v.rec.ID, v.extents) },
			func() []*volume {
				p.expanding -= more
				p.virtual += more
				from.have = v.extents
				return nil
			})
		s.crash("clone: enlarged")
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if from.have < v.extents {
		p.expanding -= more
		v.extents = from.have
	}
	return err
}
