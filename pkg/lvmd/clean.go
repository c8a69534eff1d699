package lvmd

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// clean is the space of a group that is known to hold zeroes because lvmd wiped
// it, and because nothing has taken it since: of each physical volume, by UUID,
// a set of bytes. What is free but not in it may hold anything: what an earlier
// owner of the disk left, or a volume that an administrator removed by hand.
//
// It is true of one sequence number of the group's metadata. Each change that
// lvmd makes says what it took; after a change by anybody else, or one that is
// not accounted for, nothing is known any more. So whatever is missed, or lost
// with the journal, costs a wipe too many and never one too few.
//
// The model's lock guards it.
type clean map[string]spans

// take removes what a volume has taken.
func (c clean) take(pieces []lvm.Piece) {
	for _, p := range pieces {
		for _, a := range p.Areas {
			c[a.Device] = c[a.Device].minus(span{a.Start, a.Start + a.Length})
		}
	}
}

// give adds what was wiped and is free now.
func (c clean) give(pieces []lvm.Piece) {
	for _, p := range pieces {
		if !p.Verbatim {
			continue
		}
		for _, a := range p.Areas {
			c[a.Device] = c[a.Device].plus(span{a.Start, a.Start + a.Length})
		}
	}
}

// holds tells whether all that a piece lies on is clean.
func (c clean) holds(p lvm.Piece) bool {
	for _, a := range p.Areas {
		if !c[a.Device].holds(span{a.Start, a.Start + a.Length}) {
			return false
		}
	}
	return true
}

// distrust forgets what is known to hold zeroes in a group that was changed by another
// program: that may have used any of its space and given it back, and moved wiped volumes
// away from where they were. The caller holds the model's lock.
func (m *model) distrust(g *group) {
	g.clean = clean{}
	g.distrusted++
	for _, v := range m.volumes {
		if v.group == g {
			v.pieces = nil
		}
	}
}

// size counts the bytes.
func (c clean) size() int64 {
	var n int64
	for _, s := range c {
		n += s.size()
	}
	return n
}

// taken accounts for what a change gave to a volume, from the given offset of
// it, and returns the stretches of it that are not known to be clean. err is
// why pieces are not known: then nothing is known to be clean. The caller holds
// the model's lock.
func (g *group) taken(pieces []lvm.Piece, from, size int64, err error) spans {
	g.accounted = true
	if err != nil {
		g.clean = clean{}
		return spans{}.plus(span{from, size})
	}
	var unclean spans
	for _, p := range pieces {
		if p.Offset+p.Length > from && !g.clean.holds(p) {
			unclean = unclean.plus(span{max(from, p.Offset), p.Offset + p.Length})
		}
	}
	g.clean.take(pieces)
	return unclean
}

// mustBeClean tells whether all that a volume shows to its user must be zeroes.
// A file system shows nothing but what was written to it, as does a key; and classes that are
// not wiped show what they show.
func (m *model) mustBeClean(i identity) bool {
	if !i.Block || i.Encryption != "" {
		return false
	}
	c := m.class(i.Class)
	return c == nil || c.Wipe == config.WipeAuto || c.Wipe == config.WipeZero
}

// headAndTail is how much is zeroed at both ends of a new volume, so that no
// signature of an earlier life of the disk is found in it. LVM's own metadata,
// partition tables and all file systems' first superblocks lie within.
const headAndTail = 1 << 20

// clearNew makes a new volume fit to be handed out: what is not known to be
// clean of it is cleared, all of a raw volume, the ends of one with a file
// system.
func (s *Service) clearNew(ctx context.Context, v *volume, h lvm.Handle) error {
	size := h.Size()
	s.model.mu.Lock()
	unclean := v.unclean
	if v.rec.Phase == unfinished {
		unclean = spans{{0, size}}
	}
	head := max(headAndTail, v.rec.Ident.headerBytes())
	if !s.model.mustBeClean(v.rec.Ident) && size > head+headAndTail {
		unclean = unclean.minus(span{head, size - headAndTail})
	}
	s.model.mu.Unlock()
	return s.zero(ctx, h, unclean)
}

// zero makes stretches of a volume read as zeroes, durably.
func (s *Service) zero(ctx context.Context, h lvm.Handle, stretches spans) error {
	for _, e := range stretches {
		for off := e.from; off < e.to; off += wipeChunk {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(wipeChunk, e.to-off)
			if err := h.Zero(off, n); err != nil {
				return err
			}
			s.metrics.cleared.Add(float64(n))
		}
	}
	if len(stretches) == 0 {
		return nil
	}
	return h.Sync()
}

// bucketGroups has what is remembered of each group, by name.
var bucketGroups = []byte("groups")

// groupRecord is what the journal keeps of a group. Without it, or with one
// that is out of date, no space is known to be clean.
type groupRecord struct {
	UUID  string `json:"uuid"`
	Seqno uint64 `json:"seqno"`
	// Clean has, for each physical volume, starts and ends by turns.
	Clean map[string][]int64 `json:"clean,omitempty"`
}

// state is what to remember of a group, and whether that is anything.
func (m *model) state(g *group) (groupRecord, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := groupRecord{UUID: g.info.UUID, Seqno: g.metadata.Seqno, Clean: map[string][]int64{}}
	for device, s := range g.clean {
		for _, e := range s {
			r.Clean[device] = append(r.Clean[device], e.from, e.to)
		}
	}
	return r, g.present && !g.stale
}

// recallGroups gives the groups what is remembered of them. The scan that
// follows holds it against the disks. The caller holds the model's lock.
func (m *model) recallGroups(records map[string]groupRecord) {
	for name, r := range records {
		g := m.groups[name]
		if g == nil {
			continue
		}
		g.info.UUID, g.metadata.Seqno = r.UUID, r.Seqno
		for device, edges := range r.Clean {
			for ; len(edges) >= 2; edges = edges[2:] {
				g.clean[device] = g.clean[device].plus(span{edges[0], edges[1]})
			}
		}
	}
}

// remember stores, in the transaction of another change, what is clean in the
// group. It is written as late as can be: what is stored is true whenever its
// sequence number is the group's.
func (s *Service) remember(g *group) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		r, ok := s.model.state(g)
		if !ok {
			return nil
		}
		b, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("journal: volume group %q: %w", g.name, err)
		}
		bucket, err := tx.CreateBucketIfNotExists(bucketGroups)
		if err != nil {
			return err
		}
		return bucket.Put([]byte(g.name), b)
	}
}

// rememberAll stores what is clean in every group.
func (s *Service) rememberAll() error {
	return s.journal.do(func(tx *bbolt.Tx) error {
		for _, g := range s.model.groups {
			if err := s.remember(g)(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// groupStates returns what is remembered of each group. What cannot be
// understood is as good as forgotten.
func (j *journal) groupStates() (map[string]groupRecord, error) {
	records := map[string]groupRecord{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketGroups)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, v []byte) error {
			var r groupRecord
			if json.Unmarshal(v, &r) == nil {
				records[string(k)] = r
			}
			return nil
		})
	})
	return records, err
}
