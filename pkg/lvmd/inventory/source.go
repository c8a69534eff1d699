package inventory

import (
	"slices"

	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
	"github.com/carve-csi/carve/pkg/quantity"
)

type source struct {
	// volume is pinned: it is neither deleted nor expanded meanwhile.
	volume *Volume
	// snapshot is true if LVM snapshots the source in its pool, and false if lvmd copies it.
	snapshot bool
	// have counts the extents that the new volume has so far.
	have   int64
	copied int64
}

func (v *volumeWork) pin(from *source) {
	v.source = from
	from.volume.pins++
}

func (v *volumeWork) unpin() {
	if v.source != nil {
		v.source.volume.pins--
	}
	v.source = nil
}

func (v *Volume) tags() []string {
	return slices.Concat(v.rec.Ident.Tags(), v.limitTags, v.making.tags())
}

func makingTag(from *source) string {
	if from != nil && !from.snapshot {
		return spec.TagCopying
	}
	return spec.TagMaking
}

// sourceVolume returns the volume or snapshot of an id if it can be a source now.
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

// chooseFor chooses the group of a volume that has a source, and the way to create it; it completes
// the identity.
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

// Source is the source of a volume that is being created.
type Source struct {
	// Volume is pinned until the creation ends.
	Volume *Volume
	// Snapshot is true if LVM snapshots the source in its pool, and false if lvmd copies it.
	Snapshot bool
	// Since marks what was written to the source before the copy began. Copied counts the bytes that
	// the journal has as copied.
	Since  blockdev.WriteMark
	Copied int64
	// Limit limits the rate of the copy; nil is no limit.
	Limit *rate.Limiter
	// Handle is the source's device while it is copied, which the creation opens and closes.
	Handle blockdev.Handle
}

func (m *model) source(v *Volume) *Source {
	if v.source == nil {
		return nil
	}
	s := &Source{Volume: v.source.volume, Snapshot: v.source.snapshot, Since: v.rec.Source, Copied: v.rec.Copied}
	if c := m.class(v.rec.Ident.Class); c != nil {
		s.Limit = c.copying
	}
	return s
}

// tooSmall reports whether the volume was made by a snapshot and has yet to grow to the requested size.
func (v *Volume) tooSmall() bool {
	if v.pool == nil || v.rec.Ident.Source == "" || v.rec.Ident.Snapshot {
		return false
	}
	want, err := v.rec.Ident.Extents(v.group.info.ExtentSize)
	return err == nil && want > v.extents
}

// Progress is the progress of a copy.
type Progress struct {
	// Copied counts bytes, see Source.Since for Since.
	Copied int64
	Since  blockdev.WriteMark
	// Durable updates the volume's record, and Publish notifies watchers.
	Durable, Publish bool
}

// NoteProgress sets the progress of the copy to a volume, and returns the record for the journal.
func (v *Volume) NoteProgress(p Progress) spec.Record {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.source.copied = p.Copied
	if p.Durable {
		v.rec.Copied, v.rec.Source = p.Copied, p.Since
	}
	if p.Publish {
		m.publish(v.group, v)
	}
	return v.rec
}

// resumeCopy continues a copy that a previous run of lvmd left, and reports whether there is one. The
// copy itself checks whether the source has changed.
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

// Enlargement returns the size, in extents, that a volume made by a snapshot is yet to be enlarged
// to, or zero if it has that. It fails if the pool has no space.
func (v *Volume) Enlargement() (extents int64, err error) {
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

func (v *Volume) abandonEnlargement() {
	if s := v.source; s != nil && s.snapshot && s.have > 0 && s.have < v.extents {
		v.pool.expanding -= v.extents - s.have
		v.extents = s.have
	}
}

type enlarged struct{ v *Volume }

// Enlarged is the effect of the command that enlarges a volume, see Volume.Enlargement.
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
