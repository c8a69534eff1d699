package inventory

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

const (
	// A failed wipe or removal is tried again after a delay that doubles.
	firstRetry = 250 * time.Millisecond
	lastRetry  = time.Minute
	// FairEvery is of how many chunks one is of the volume that has waited longest.
	FairEvery = 4
	// MaxSlow bounds how many wipes of a group wait for their disks at once, each for other disks.
	MaxSlow = 16
)

// ToDelete says what is to be deleted.
type ToDelete struct {
	// Exactly one of ID and Name is set.
	ID, Name string
	// Snapshot is true for a snapshot, and false for a volume.
	Snapshot bool
	// OnlyProvisional is true when a volume that is not provisional is to stay.
	OnlyProvisional bool
}

// ClaimForDeletion claims a volume, or snapshot. Nothing else changes it from then on, until Release
// or MarkDeleted.
func (m *Inventory) ClaimForDeletion(d ToDelete) (*Volume, error) {
	m.lock()
	defer m.unlock()
	what := "volume"
	if d.Snapshot {
		what = "snapshot"
	}
	v, err := m.lookup(d.ID, d.Name, d.Snapshot)
	switch {
	case err != nil:
		return nil, err
	case d.OnlyProvisional && !isProvisional(v):
		return nil, apierror.VolumeKept(v.rec.ID)
	case v.op != nil && v.op.isUnattended():
		v.op.stop()
		return nil, apierror.OperationPending("%s %s is being made, which is cancelled now", what, v.rec.ID)
	case v.expansion != nil:
		v.expansion.cancel()
		return nil, apierror.OperationPending("%s %s is being expanded, which is cancelled now", what, v.rec.ID)
	case v.isBusy() || v.pins > 0:
		return nil, apierror.OperationPending("another operation on %s %s is under way", what, v.rec.ID)
	}
	if err := v.dependents.refuse(v.group.name, v.rec.ID); err != nil {
		return nil, err
	}
	m.enter(v, Deleting)
	return v, nil
}

// MarkDeleted makes a volume a tombstone that has its open device, or nil. The device of one that a
// scan has lost meanwhile is returned: the caller closes it.
func (v *Volume) MarkDeleted(h blockdev.Handle) (left blockdev.Handle) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	m.markDeleted(v)
	m.publish(v.group, v)
	if v.lifecycle.state == Gone {
		return h
	}
	v.handle = h
	return nil
}

// needsMark reports whether LVM's metadata is yet to show that a tombstone is one. What LVM has
// not finished making is known for that by itself.
func needsMark(v *Volume) bool {
	return v.lifecycle.state == Deleted && !v.halfMade && v.group.exists[v.rec.ID]
}

// NextToMark picks at most so many tombstones that are to be marked, by one command. When all of
// them must wait, it returns until when; the zero time means for an event.
func (g *Group) NextToMark(most int) (batch []*Volume, retry time.Time) {
	m := g.m
	now := time.Now()
	m.lock()
	defer m.unlock()
	if !g.canFree() {
		return nil, time.Time{}
	}
	for _, v := range m.volumes {
		switch {
		case v.group != g || !needsMark(v):
		case v.retryAt.After(now):
			retry = wakeup.Earlier(retry, v.retryAt)
		case len(batch) < most:
			batch = append(batch, v)
		}
	}
	return batch, retry
}

type marked struct{ batch []*Volume }

// MarkedDeleted is the effect of the command that marked tombstones.
func MarkedDeleted(batch []*Volume) Effect { return marked{batch} }

func (e marked) steps() uint64 { return uint64(len(e.batch)) }
func (e marked) delta() int64  { return 0 }
func (e marked) apply(m *model) []*Volume {
	for _, v := range e.batch {
		m.enter(v, Marked)
		v.failures = 0
	}
	return nil
}

// NextToWipe picks a tombstone, and begins a step of its wipe, which must be ended. When all of them
// must wait, ok is false, and retry is until when; the zero time means for an event.
//
// While the step of another one waits for its disks, those that lie on the same disks are not
// picked. Which those are may have to be asked for first, see WipeStep.MustLocate.
//
// Small volumes do not wait for large ones: most chunks are of the volume with the least left to
// do, which makes the mean wait the least possible. One of FairEvery is of the volume that has
// waited longest, and of these the largest, so that large ones end, too.
func (g *Group) NextToWipe() (step WipeStep, ok bool, retry time.Time) {
	m := g.m
	now := time.Now()
	m.lock()
	defer m.unlock()
	if !g.canFree() {
		return WipeStep{}, false, time.Time{}
	}
	slow := m.slowDisks(g)
	if len(slow) >= MaxSlow {
		return WipeStep{}, false, time.Time{}
	}
	left := func(v *Volume) int64 { return v.bytes() - v.rec.Wiped }
	var best *Volume
	before := func(a, b *Volume) bool {
		if g.chunks%FairEvery == 0 {
			return a.waitsSince < b.waitsSince || a.waitsSince == b.waitsSince && left(a) > left(b)
		}
		return left(a) < left(b)
	}
	for _, v := range m.volumes {
		if v.group != g || v.rec.Phase != spec.Deleting || v.lifecycle.state == Wiped || needsMark(v) || len(v.dependents) > 0 || v.pool.isAway() || v.step || v.disks != "" && slow[v.disks] {
			continue
		}
		if v.waitsSince == 0 {
			v.waitsSince = g.chunks + 1
		}
		switch {
		case v.retryAt.After(now):
			retry = wakeup.Earlier(retry, v.retryAt)
		case best == nil || before(v, best):
			best = v
		}
	}
	if best == nil {
		return WipeStep{}, false, retry
	}
	g.chunks++
	best.waitsSince = g.chunks + 1
	step = m.beginStep(best)
	step.MustLocate = best.disks == "" && len(slow) > 0
	return step, true, retry
}

// WipeStep is one step of a tombstone's wipe, which has one at a time: what it needs when NextToWipe
// begins it, and what came of it when End ends it.
type WipeStep struct {
	Volume *Volume
	// Size is the volume's, in bytes. Where its device has more, the device may be another's, and
	// where it has less, its end would not be wiped.
	Size int64
	// How is how the volume is wiped, and Limit what limits the rate; nil is no limit.
	How   config.Wipe
	Limit *rate.Limiter
	// HalfMade is true of a volume that was never written to, and Thin of a thin one.
	HalfMade, Thin bool
	// MustLocate is true of a volume that may lie on disks that another one's step waits for.
	MustLocate bool
	forgotten  int
	WipeResult
}

// WipeResult is how far a wipe is, and what came of a step.
type WipeResult struct {
	// Handle is the volume's open device, or nil. It is the step's alone until End: a scan that loses
	// the volume meanwhile closes nothing.
	Handle blockdev.Handle
	// Record is what the journal is to have. The step sets how much is wiped, and whether anything is
	// left as it is.
	Record spec.Record
	// Done is true once the volume is only to be removed. It lies in Segments, if they hold zeroes.
	Done     bool
	Segments []lvm.Segment
	// Failed delays the next step, the more the more of them failed; RetryAt delays it until then.
	Failed  bool
	RetryAt time.Time
	// Suspect is true when the device has not the volume's size.
	Suspect bool
}

// slowDisks are the sets of disks that steps of a group's wipes wait for.
func (m *model) slowDisks(g *Group) map[string]bool {
	slow := map[string]bool{}
	for _, v := range m.volumes {
		if v.group == g && v.slow {
			slow[v.disks] = true
		}
	}
	return slow
}

// beginStep begins a step of a tombstone's wipe, and hands its device to it.
func (m *model) beginStep(v *Volume) WipeStep {
	s := WipeStep{
		Volume: v, Size: v.bytes(), How: config.WipeAuto, HalfMade: v.halfMade, Thin: v.pool != nil,
		forgotten: v.group.forgotten, WipeResult: WipeResult{Handle: v.handle, Record: v.rec},
	}
	v.step, v.handle = true, nil
	if c := m.class(v.rec.Ident.Class); c != nil { // One that is not configured any more wipes.
		s.How, s.Limit = c.Wipe, c.wiping
	}
	if v.IsEncrypted() && s.How != config.WipeDiscard {
		s.How = config.WipeNone // The key is gone.
	}
	return s
}

// Locate notes by one name the set of disks that a tombstone lies on. slow has others on these disks
// wait until its step has ended.
func (s WipeStep) Locate(disks string, slow bool) {
	v, m := s.Volume, s.Volume.group.m
	m.lock()
	defer m.unlock()
	v.disks, v.slow = disks, slow && v.step
}

// End ends the step, takes over what came of it, and reports whether others waited for its end. kept
// is false when a scan has lost the volume meanwhile: then the caller closes the step's device.
func (s WipeStep) End() (kept, waited bool) {
	v, m := s.Volume, s.Volume.group.m
	m.lock()
	defer m.unlock()
	waited = v.slow
	v.step, v.slow = false, false
	v.group.suspect = v.group.suspect || s.Suspect
	if v.lifecycle.state == Gone {
		return false, waited
	}
	if s.Done || s.Record.Wiped > v.rec.Wiped {
		v.failures = 0
	}
	v.handle, v.retryAt = s.Handle, s.RetryAt
	v.rec.Wiped, v.rec.NotZeroed = s.Record.Wiped, s.Record.NotZeroed
	if s.Failed {
		m.postpone(v)
	}
	if s.Done {
		// What was read of the group before another program changed it says nothing of it.
		if v.group.forgotten == s.forgotten {
			v.segmentsFreed = s.Segments
		}
		m.enter(v, Wiped)
	}
	return true, waited
}

// Postpone delays the next attempt on volumes, the more the more of them failed, but for tombstones
// that the failed command has marked.
func (m *Inventory) Postpone(volumes ...*Volume) {
	m.lock()
	defer m.unlock()
	for _, v := range volumes {
		if v.lifecycle.state != Marked {
			m.postpone(v)
		}
	}
}

func (m *model) postpone(v *Volume) {
	delay := lastRetry
	if v.failures < 8 {
		delay = firstRetry << v.failures
	}
	v.failures++
	v.retryAt = time.Now().Add(delay)
}

// NextToRemove picks tombstones that are only to be removed, by one command: at most so many, or so many
// thin ones. Of those that failed, each time half as many are picked: a command that is killed at its
// deadline is followed by a shorter one. When all of them must wait, it returns until when; the zero time
// means for an event.
func (g *Group) NextToRemove(most, mostThin int) (batch []*Volume, retry time.Time) {
	m := g.m
	now := time.Now()
	m.lock()
	defer m.unlock()
	if !g.canFree() {
		return nil, time.Time{}
	}
	limit := 0
	for _, v := range m.volumes {
		switch {
		case v.group != g || v.lifecycle.state != Wiped || len(v.dependents) > 0 || v.pool.isAway():
		case len(batch) > 0 && (batch[0].pool == nil) != (v.pool == nil):
			// One command removes either thin volumes or others: by how much it
			// raises the sequence number depends on that.
		case v.retryAt.After(now):
			retry = wakeup.Earlier(retry, v.retryAt)
		case len(batch) > 0 && batch[0].failures != v.failures:
		case len(batch) == 0 || len(batch) < limit:
			if limit = most; v.pool != nil {
				limit = mostThin
			}
			limit >>= v.failures
			batch = append(batch, v)
		}
	}
	return batch, retry
}

type removed struct{ batch []*Volume }

// Removed is the effect of the command that removed tombstones, of one group, thin or not.
func Removed(batch []*Volume) Effect { return removed{batch} }

func (e removed) steps() uint64 {
	if e.batch[0].pool != nil {
		return lvm.ThinSteps * uint64(len(e.batch))
	}
	return 1
}

func (e removed) delta() int64 {
	var extents int64
	for _, v := range e.batch {
		extents += v.takes(v.extents)
	}
	return extents
}

func (e removed) apply(m *model) []*Volume {
	g := e.batch[0].group
	for _, v := range e.batch {
		delete(g.exists, v.rec.ID)
		g.zeroes.Free(v.segmentsFreed)
		if v.pool != nil {
			v.pool.virtual -= v.extents
		} else {
			g.fragments += v.segments
		}
		m.drop(v)
	}
	m.boundFragments(g)
	return nil
}
