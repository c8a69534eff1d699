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
	// The delay after a failed wipe or removal doubles each time.
	firstRetry = 250 * time.Millisecond
	lastRetry  = time.Minute
	// FairEvery is the interval, in chunks, at which the longest-waiting volume gets one.
	FairEvery = 4
	// MaxSlow bounds the wipes of a group that wait for their disks at once, each for other disks.
	MaxSlow = 16
)

// ToDelete selects a volume to delete.
type ToDelete struct {
	// Exactly one of ID and Name is set.
	ID, Name string
	Snapshot bool
	// OnlyProvisional keeps a volume that is not provisional.
	OnlyProvisional bool
}

// ClaimForDeletion claims a volume or snapshot until Release or MarkDeleted.
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

// MarkDeleted makes a volume a tombstone with its open device h, which may be nil. If a scan has
// lost the volume, it returns h for the caller to close.
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

// needsMark reports whether LVM's metadata has yet to show the tombstone. An unfinished creation
// shows as one by itself.
func needsMark(v *Volume) bool {
	return v.lifecycle.state == Deleted && !v.halfMade && v.group.exists[v.rec.ID]
}

// NextToMark returns up to most tombstones to mark with one command. If none is due, retry is the
// earliest due time, or zero to wait for an event.
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

// MarkedDeleted is the effect of the command that marks tombstones.
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

// NextToWipe picks a tombstone and begins a step of its wipe, which the caller must end. If none is
// due, ok is false, and retry is the earliest due time, or zero to wait for an event.
//
// It skips tombstones on disks that another one's step waits for; WipeStep.MustLocate asks for the
// disks of one where they are not known.
//
// Most chunks go to the volume with the least left to wipe, which minimizes the mean wait. One in
// FairEvery goes to the volume that has waited longest, and of these to the largest, so that large
// volumes finish, too.
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

// WipeStep is the step of a tombstone's wipe between NextToWipe and End. A tombstone has at most
// one.
type WipeStep struct {
	Volume *Volume
	// Size is the volume's, in bytes. A larger device may be another volume's; the end of a smaller
	// one would not be wiped.
	Size int64
	// Limit limits the rate; nil means no limit.
	How   config.Wipe
	Limit *rate.Limiter
	// HalfMade is true of a volume that was never written to.
	HalfMade, Thin bool
	// Failures counts the failed steps in a row.
	Failures int
	// MustLocate is true if the volume may lie on disks that another one's step waits for.
	MustLocate bool
	forgotten  int
	WipeResult
}

// WipeResult is the progress of a wipe.
type WipeResult struct {
	// Handle is the volume's open device, or nil. The step owns it until End: a scan that loses the
	// volume does not close it.
	Handle blockdev.Handle
	// Record is for the journal. The step sets Wiped and NotZeroed.
	Record spec.Record
	// Done is true once the volume has only to be removed. Segments are its own if they hold
	// zeroes.
	Done     bool
	Segments []lvm.Segment
	// Failed delays the next step, longer after each failure in a row; RetryAt delays it until
	// then.
	Failed  bool
	RetryAt time.Time
	// Refused is true while a disk refuses the wipe's writes.
	Refused bool
	// Suspect is true if the device's size differs from the volume's.
	Suspect bool
}

func (m *model) slowDisks(g *Group) map[string]bool {
	slow := map[string]bool{}
	for _, v := range m.volumes {
		if v.group == g && v.slow {
			slow[v.disks] = true
		}
	}
	return slow
}

func (m *model) beginStep(v *Volume) WipeStep {
	s := WipeStep{
		Volume: v, Size: v.bytes(), How: config.WipeAuto, HalfMade: v.halfMade, Thin: v.pool != nil,
		Failures: v.failures, forgotten: v.group.forgotten,
		WipeResult: WipeResult{Handle: v.handle, Record: v.rec, Refused: v.group.refusing[v.rec.ID]},
	}
	v.step, v.handle = true, nil
	if c := m.class(v.rec.Ident.Class); c != nil { // The default wipes.
		s.How, s.Limit = c.Wipe, c.wiping
	}
	if v.IsEncrypted() && s.How != config.WipeDiscard {
		s.How = config.WipeNone // The key is gone.
	}
	return s
}

// Locate sets the name for the set of disks that a tombstone lies on. slow makes other tombstones
// there wait for the end of the step.
func (s WipeStep) Locate(disks string, slow bool) {
	v, m := s.Volume, s.Volume.group.m
	m.lock()
	defer m.unlock()
	v.disks, v.slow = disks, slow && v.step
}

// End applies the step's result, and reports whether other tombstones waited. If kept is false, a
// scan has lost the volume, and the caller closes the step's device.
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
	if v.group.refusing[v.rec.ID] != s.Refused {
		v.group.setRefusing(v, s.Refused)
		m.publish(v.group)
	}
	v.handle, v.retryAt = s.Handle, s.RetryAt
	v.rec.Wiped, v.rec.NotZeroed = s.Record.Wiped, s.Record.NotZeroed
	if s.Failed {
		m.postpone(v)
	}
	if s.Done {
		// Another program changed the group after Segments were read: they may be wrong.
		if v.group.forgotten == s.forgotten {
			v.segmentsFreed = s.Segments
		}
		m.enter(v, Wiped)
	}
	return true, waited
}

func (g *groupHealth) setRefusing(v *Volume, refuses bool) {
	if delete(g.refusing, v.rec.ID); refuses {
		g.refusing[v.rec.ID] = true
	}
}

// Postpone delays the next attempt on volumes, longer after each failure in a row. It skips
// tombstones that the failed command has marked.
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

// NextToRemove returns tombstones to remove with one command: up to most, or mostThin thin ones,
// and half as many after each failure, so that a shorter command follows one killed at its
// deadline. If none is due, retry is the earliest due time, or zero to wait for an event.
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
			// Never mix thin and other volumes: they raise the sequence number differently.
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

// Removed is the effect of the command that removes tombstones, thin or not, from one group.
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
