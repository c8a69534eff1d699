package inventory

import (
	"time"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// Creation creates one volume. Requests for the same name join it. It is cancelled once no caller has
// waited for it for Options.CallerGrace.
type Creation struct {
	m    *model
	done chan struct{}
	// cancel is nil before Begin.
	cancel  func()
	waiters int
	// abandoned cancels the creation unless a caller joins it in time; nil while there are callers.
	abandoned *time.Timer
	cancelled bool
	// lasting is true of a creation that needs no caller.
	lasting bool
	// volume and err are valid once done is closed.
	volume *lvmdv1.Volume
	err    error
}

// Done is closed when the creation ends.
func (op *Creation) Done() <-chan struct{} { return op.done }

// Result returns the volume, or why there is none, once the creation is done.
func (op *Creation) Result() (*lvmdv1.Volume, error) { return op.volume, op.err }

func (op *Creation) join() {
	op.waiters++
	op.attended()
}

func (op *Creation) attended() {
	if op.abandoned != nil {
		op.abandoned.Stop()
		op.abandoned = nil
	}
}

func (op *Creation) stop() {
	op.cancelled = true
	if op.cancel != nil {
		op.cancel()
	}
}

func (op *Creation) isUnattended() bool { return op.lasting || op.waiters == 0 }

// Admission is the answer to a request for a volume.
type Admission struct {
	Volume *Volume
	// Creation is what the caller waits for; nil if the volume is ready.
	Creation *Creation
	// New is true if the caller carries out the creation, of Source unless that is nil.
	New    bool
	Source *Source
	// Ready reports a volume that is ready; nil for a snapshot.
	Ready *lvmdv1.Volume
}

// AdmitCreation finds the volume, joins its creation, or reserves space for a new one, all at one
// instant. An existing volume keeps its limits, and stays provisional or not.
func (m *Inventory) AdmitCreation(ident spec.Identity, limits iolimit.Limits, provisional bool) (Admission, error) {
	m.lock()
	defer m.unlock()
	c := m.class(ident.Class)
	if c != nil {
		ident.Class = c.Name
		ident.DAX = c.Medium == config.PMEM && !ident.Block
	}
	if err := ident.CheckMapping(); err != nil {
		return Admission{}, err
	}
	if v := m.names[ident.Key()]; v != nil {
		return m.joinCreation(v, &ident)
	}
	switch {
	case c == nil && ident.DefaultClass:
		return Admission{}, apierror.ClassNotFound("no device class was named and no class is the default; %s", m.classNames())
	case c == nil || c.reported == nil:
		return Admission{}, apierror.ClassNotFound("no device class %q; %s", ident.Class, m.classNames())
	}
	if err := ident.CheckMedium(); err != nil {
		return Admission{}, err
	}
	if !ident.Block {
		ident.FSUUID = spec.NewUUID()
	}
	var in *classGroup
	var fit fit
	var from *source
	var err error
	if ident.Source != "" {
		in, fit, from, err = m.chooseFor(c, &ident)
	} else {
		in, fit, err = c.choose(&ident)
	}
	if err == nil && ident.Owner.PodUID != "" {
		err = in.checkInlineShare(fit.extents)
	}
	if err != nil {
		return Admission{}, err
	}
	v := &Volume{
		group:        in.group,
		volumeScan:   volumeScan{pool: in.pool, layout: in.layout(), extents: fit.extents, segments: fit.segments},
		volumeLimits: limitsOf(limits),
		volumeWork:   volumeWork{reservedText: fit.text},
		recorded:     recorded{newRecord(spec.NewVolumeID(), in.group, ident)},
	}
	v.rec.Provisional = provisional
	for _, tag := range v.limitTags {
		v.reservedText += int64(len(tag))
	}
	op := m.admit(v, from)
	// Copying and clearing may take hours.
	op.lasting = from != nil && !from.snapshot || v.pool == nil && m.mustBeZeroed(ident)
	m.publish(v.group, v)
	return Admission{Volume: v, Creation: op, New: true, Source: m.source(v)}, nil
}

func newRecord(id string, g *Group, ident spec.Identity) spec.Record {
	return spec.Record{
		ID: id, Group: g.name, Phase: spec.Creating, Ident: ident, Tagged: true,
		Created: time.Now().UTC().Truncate(time.Millisecond),
	}
}

// joinCreation is AdmitCreation for the name of an existing volume.
func (m *model) joinCreation(v *Volume, ident *spec.Identity) (Admission, error) {
	if d := v.rec.Ident.Difference(*ident); d != "" {
		return Admission{}, apierror.RequestDiffers(ident.Name, d)
	}
	switch {
	case v.lifecycle.state == Deleting:
		return Admission{}, errDeleting(v)
	case v.rec.Phase == spec.Ready:
		return Admission{Volume: v, Ready: v.proto()}, nil
	case v.lifecycle.state == Unfinished:
		return Admission{}, apierror.VolumeLeftAlone(v.rec.ID, v.group.name, contentsNotFound(v))
	case v.op == nil:
		return Admission{}, apierror.OperationPending("another operation on volume %q is under way", ident.Name)
	case v.op.cancelled:
		return Admission{}, apierror.OperationPending("an earlier, cancelled creation of volume %q is being undone", ident.Name)
	}
	v.op.join()
	return Admission{Volume: v, Creation: v.op}, nil
}

// errDeleting rejects a request for a volume that a deletion has claimed: it is gone a moment later.
func errDeleting(v *Volume) error {
	return apierror.OperationPending("%q is being deleted", v.rec.Ident.Name)
}

func (m *model) admit(v *Volume, from *source) *Creation {
	v.making.tag, v.making.provisional = makingTag(from), v.rec.Provisional
	v.reserve()
	m.add(v, Creating)
	if from != nil {
		v.pin(from)
	}
	return m.beginCreation(v)
}

func (m *model) beginCreation(v *Volume) *Creation {
	v.op = &Creation{m: m, done: make(chan struct{}), waiters: 1}
	m.enter(v, v.lifecycle.begun())
	return v.op
}

// Begin sets the function that cancels the creation, and calls it if the creation is cancelled already.
func (op *Creation) Begin(cancel func()) {
	m := op.m
	m.lock()
	defer m.unlock()
	op.cancel = cancel
	if op.cancelled {
		cancel()
	}
}

// End takes a volume from its creation and gives the result to its callers. Without an error the
// volume is ready, as the journal has it.
func (v *Volume) End(op *Creation, err error) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.op = nil
	if err != nil && v.pool != nil && v.source != nil {
		v.group.stale = true // The command that enlarges the volume may have failed late.
	}
	op.attended()
	v.unpin()
	if op.err = err; err == nil {
		v.rec.Copied, v.rec.Source, v.rec.Tagged = 0, blockdev.WriteMark{}, false
		v.making.offAt = time.Now().Add(untagDelay)
		m.enter(v, Ready)
		m.publish(v.group, v)
		op.volume = v.proto()
	}
	m.enter(v, v.lifecycle.ended())
	close(op.done)
}

// Leave removes a caller that no longer waits.
func (op *Creation) Leave() {
	m := op.m
	m.lock()
	defer m.unlock()
	op.waiters--
	if op.waiters > 0 || op.lasting {
		return
	}
	op.abandoned = time.AfterFunc(m.options.CallerGrace, func() {
		m.lock()
		defer m.unlock()
		if op.waiters == 0 {
			op.stop()
		}
	})
}

// BeginReformat begins to create anew a claimed volume whose key was lost at the given time.
func (v *Volume) BeginReformat(lost time.Time) *Creation {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.rec.Reformatted = lost
	op := m.beginCreation(v)
	m.publish(v.group, v)
	return op
}

// UndoCreation releases the reservation of a creation that failed, and reports whether LVM may have
// made the volume; tried is false if no command was run. It forgets a volume that LVM has not made.
func (v *Volume) UndoCreation(tried bool) (made bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.unreserve()
	if tried && (v.group.stale || v.group.exists[v.rec.ID]) {
		return true
	}
	m.drop(v)
	m.publish(v.group, v)
	return false
}

// Command is the LVM command that makes a volume. One of its fields is set.
type Command struct {
	Create   *lvm.CreateOptions
	Thin     *lvm.ThinOptions
	Snapshot *lvm.SnapshotOptions
}

// PlanCreation returns the command that makes a volume, with what is free now. It fails if the
// devices have no place for the volume's layout. The caller has the group's slot.
func (v *Volume) PlanCreation() (Command, error) {
	m, g := v.group.m, v.group
	m.lock()
	defer m.unlock()
	if from := v.source; from != nil && from.snapshot {
		return Command{Snapshot: &lvm.SnapshotOptions{
			Group: g.name, Origin: from.volume.rec.ID, Volume: v.rec.ID, Tags: v.tags(), Inactive: v.rec.Ident.Snapshot,
		}}, nil
	}
	if v.pool != nil {
		return Command{Thin: &lvm.ThinOptions{Group: g.name, Pool: v.pool.name, Volume: v.rec.ID, Bytes: v.bytes(), Tags: v.tags()}}, nil
	}
	on, err := checkPlace(g, "volume "+v.rec.ID, v.layout, v.planCreation(), v.extents)
	if err != nil {
		return Command{}, err
	}
	o := &lvm.CreateOptions{Group: g.name, Volume: v.rec.ID, Layout: v.layout, Extents: v.extents, On: on, Tags: v.tags()}
	if c := m.class(v.rec.Ident.Class); c != nil {
		o.Options = c.LvcreateOptions
	}
	return Command{Create: o}, nil
}

// NotZeroed returns where a new volume may not hold zeroes. all is true if its user must find zeroes
// everywhere.
func (v *Volume) NotZeroed() (where zeroed.Set, all bool) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.notZeroed, m.mustBeZeroed(v.rec.Ident)
}

// NoteCleared sets how much of a new volume is cleared, in bytes.
func (v *Volume) NoteCleared(bytes int64) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	v.making.cleared = bytes
}

type created struct {
	v        *Volume
	segments []lvm.Segment
	unmapped error
}

// Created is the effect of the command that made a volume. unmapped says why segments are unknown; a
// thin volume has none.
func Created(v *Volume, segments []lvm.Segment, unmapped error) Effect {
	return created{v, segments, unmapped}
}

func (e created) steps() uint64 {
	if e.v.pool != nil {
		return lvm.ThinSteps
	}
	return e.v.layout.Commits()
}

func (e created) delta() int64 { return -e.v.takes(e.v.extents) }

func (e created) apply(*model) []*Volume {
	v, g := e.v, e.v.group
	v.unreserve()
	g.exists[v.rec.ID] = true
	switch from := v.source; {
	case from != nil && from.snapshot:
		from.have = from.volume.extents
		v.pool.virtual += from.have
		v.pool.expanding += v.extents - from.have
	case v.pool != nil:
		v.pool.virtual += v.extents
	default:
		v.notZeroed = g.taken(e.segments, 0, v.bytes(), e.unmapped)
		v.occupy(e.segments, e.unmapped)
	}
	return nil
}
