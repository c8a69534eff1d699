package inventory

import (
	"slices"

	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
	"github.com/carve-csi/carve/pkg/quantity"
)

// source is what a volume or snapshot is being made of.
type source struct {
	// volume is pinned: it is neither deleted nor expanded meanwhile.
	volume *Volume
	// snapshot is true when it is made by a snapshot in the source's pool, and
	// false when the source is copied.
	snapshot bool
	// have is how many extents the new volume has of those that it will have.
	have int64
	// handle is the source's device while it is copied, and copied how much of
	// it is.
	handle blockdev.Handle
	copied int64
}

// pin notes what a volume is made of.
func (v *volumeWork) pin(from *source) {
	v.source = from
	from.volume.pins++
}

// unpin ends that.
func (v *volumeWork) unpin() {
	if v.source != nil {
		v.source.volume.pins--
	}
	v.source = nil
}

// tags are the volume's when it is created.
func (v *Volume) tags() []string {
	return slices.Concat(v.rec.Ident.Tags(), v.limitTags, v.making.tags())
}

// makingTag is that of a volume that is being made of from, or of nothing.
func makingTag(from *source) string {
	if from != nil && !from.snapshot {
		return spec.TagCopying
	}
	return spec.TagMaking
}

// sourceVolume finds a volume that something can be made of now.
func (m *model) sourceVolume(id string) (*Volume, error) {
	v := m.volumes[id]
	switch {
	case v == nil || v.rec.Phase == spec.Deleting:
		if spec.SnapshotID.MatchString(id) {
			return nil, apierror.SnapshotNotFound(id)
		}
		return nil, apierror.VolumeNotFound(id)
	case v.isBusy() || v.rec.Phase != spec.Ready:
		return nil, apierror.OperationPending("another operation on %s is under way", id)
	}
	return v, nil
}

// chooseFor picks the group for a volume that is made of another one, and how
// it is made; it completes the identity.
func (m *model) chooseFor(c *class, ident *spec.Identity) (*classGroup, fit, *source, error) {
	origin, err := m.sourceVolume(ident.Source)
	if err != nil {
		return nil, fit{}, nil, err
	}
	if err := origin.notEncrypted("source"); err != nil {
		return nil, fit{}, nil, err
	}
	from := &origin.rec.Ident
	switch {
	case from.Block != ident.Block:
		return nil, fit{}, nil, apierror.InvalidField("mode", "%s is of another mode", ident.Source)
	case from.FSType != ident.FSType:
		return nil, fit{}, nil, apierror.InvalidField("fs_type", "%q; the file system of %s is %s", ident.FSType, ident.Source, from.FSType)
	}
	if err := from.CheckSource("source", ident.Source); err != nil {
		return nil, fit{}, nil, err
	}
	if !filesystem.SharesNoUUID(ident.FSType) {
		ident.FSUUID = from.FSUUID
	}
	ident.AtLeast = origin.bytes()
	if origin.pool != nil {
		for _, in := range c.groups {
			if in.pool == origin.pool {
				f, _, err := in.place(ident)
				return in, f, &source{volume: origin, snapshot: true}, err
			}
		}
	}
	if from.Snapshot {
		return nil, fit{}, nil, apierror.NotThin("snapshot %s lies in thin pool %q of volume group %q, which device class %q has not",
			ident.Source, origin.pool.name, origin.group.name, c.Name)
	}
	in, f, err := c.choose(ident)
	return in, f, &source{volume: origin}, err
}

// Source is what a volume is being made of.
type Source struct {
	of *Volume
	// Volume is pinned.
	Volume *Volume
	// Snapshot is true when the volume is made by a snapshot in the source's pool, and
	// false when the source is copied.
	Snapshot bool
	// Handle is the source's device while it is copied.
	Handle blockdev.Handle
	// Since is how much was written to the source when its copy began, and Copied how much of it
	// the journal has as copied.
	Since  blockdev.WriteMark
	Copied int64
	// Limit is what limits the rate of copies; nil is no limit.
	Limit *rate.Limiter
	// NotZeroed is where the new volume may not hold zeroes, and MustBeZeroed whether all that
	// its user sees of it must.
	NotZeroed    zeroed.Set
	MustBeZeroed bool
}

// Source returns what a volume is being made of, or nil.
func (v *Volume) Source() *Source {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return m.source(v)
}

func (m *model) source(v *Volume) *Source {
	if v.source == nil {
		return nil
	}
	s := &Source{
		of: v, Volume: v.source.volume, Snapshot: v.source.snapshot, Handle: v.source.handle,
		Since: v.rec.Source, Copied: v.rec.Copied, NotZeroed: v.notZeroed, MustBeZeroed: m.mustBeZeroed(v.rec.Ident),
	}
	if c := m.class(v.rec.Ident.Class); c != nil {
		s.Limit = c.copying
	}
	return s
}

// SetHandle notes the open device of the source of a copy.
func (s *Source) SetHandle(h blockdev.Handle) {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.source.handle = h
}

// TakeHandle returns the source's open device, which the caller closes, or nil.
func (s *Source) TakeHandle() blockdev.Handle {
	s.of.group.m.lock()
	defer s.of.group.m.unlock()
	h := s.of.source.handle
	s.of.source.handle = nil
	return h
}

// ContinueFrom notes the device of a volume that LVM has made, if it has one, and returns what it
// is made of.
func (v *Volume) ContinueFrom(d *lvm.Device) *Source {
	m := v.group.m
	m.lock()
	defer m.unlock()
	if d != nil {
		v.device, v.conditions = *d, nil
	}
	return m.source(v)
}

// tooSmall reports whether the volume was made by a snapshot and is yet to be
// enlarged to what was asked for.
func (v *Volume) tooSmall() bool {
	if v.pool == nil || v.rec.Ident.Source == "" || v.rec.Ident.Snapshot {
		return false
	}
	want, err := v.rec.Ident.Extents(v.group.info.ExtentSize)
	return err == nil && want > v.extents
}

// NoteCopied notes how much of a source is copied, and notifies watchers if publish is set.
func (s *Source) NoteCopied(bytes int64, publish bool) {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.source.copied = bytes
	if publish {
		m.publish(v.group, v)
	}
}

// RecordCopied is NoteCopied for what is durable, and returns what the journal is to have.
func (s *Source) RecordCopied(bytes int64, since blockdev.WriteMark) spec.Record {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.rec.Copied, v.rec.Source = bytes, since
	return v.rec
}

// resumeCopy begins to continue a copy that a previous run of lvmd left, and reports
// whether there is one. Whether the source is still what it was is seen when it is open.
func (m *model) resumeCopy(v *Volume) bool {
	if v.rec.Copied == 0 {
		return false
	}
	origin, err := m.sourceVolume(v.rec.Ident.Source)
	if err != nil {
		return false
	}
	m.info("an interrupted copy goes on", "volume", v.rec.ID, "name", v.rec.Ident.Name, "source", origin.rec.ID, "copied", v.rec.Copied)
	v.pin(&source{volume: origin, copied: v.rec.Copied})
	if v.pool == nil {
		v.notZeroed = zeroed.Set{}.Plus(zeroed.Span{From: 0, To: v.bytes()})
	}
	op := m.beginCreation(v)
	op.waiters, op.lasting = 0, true
	return true
}

// SnapshotOptions are those of the command that makes a volume or snapshot of its source.
func (s *Source) SnapshotOptions() lvm.SnapshotOptions {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	return lvm.SnapshotOptions{
		Group: v.group.name, Origin: v.source.volume.rec.ID, Volume: v.rec.ID,
		Tags: v.tags(), Inactive: v.rec.Ident.Snapshot,
	}
}

type snapshotted struct{ v *Volume }

// Snapshotted is the effect of the command that made a volume or snapshot of its source.
func Snapshotted(v *Volume) Effect { return snapshotted{v} }

func (e snapshotted) steps() uint64 { return lvm.ThinSteps }
func (e snapshotted) delta() int64  { return 0 }
func (e snapshotted) apply(*model) []*Volume {
	v, p := e.v, e.v.pool
	v.unreserve()
	v.source.have = v.source.volume.extents
	p.virtual += v.source.have
	p.expanding += v.extents - v.source.have
	v.group.exists[v.rec.ID] = true
	return nil
}

// Enlargement is to how many extents a volume that was made by a snapshot is to be enlarged;
// zero when it has them. It fails where the pool has no space for them.
func (s *Source) Enlargement() (extents int64, err error) {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	p, more := v.pool, v.extents-v.source.have
	switch {
	case more <= 0:
		return 0, nil
	case p.freeBeside(p.virtual+p.creating+p.expanding-more) < more:
		return 0, apierror.NoSpace("enlarging the volume by %s: thin pool %q has no space left", quantity.Bytes(more*v.group.info.ExtentSize), p.name)
	}
	return v.extents, nil
}

// AbandonEnlargement gives back what is reserved for an enlargement that did not take place.
func (s *Source) AbandonEnlargement() {
	v := s.of
	m := v.group.m
	m.lock()
	defer m.unlock()
	if have := v.source.have; have < v.extents {
		v.pool.expanding -= v.extents - have
		v.extents = have
	}
}

type enlarged struct{ v *Volume }

// Enlarged is the effect of the command that enlarged a volume.
func Enlarged(v *Volume) Effect { return enlarged{v} }

func (e enlarged) steps() uint64 { return 1 }
func (e enlarged) delta() int64  { return 0 }
func (e enlarged) apply(*model) []*Volume {
	more := e.v.extents - e.v.source.have
	e.v.pool.expanding -= more
	e.v.pool.virtual += more
	e.v.source.have = e.v.extents
	return nil
}
