package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// callerGrace is how long a creation goes on after its last caller has gone. Another
// controller leads within this time after one that died, and asks for the same again.
const callerGrace = time.Minute

// creation is the making of one volume. Callers of the same name join it. It is
// cancelled when no caller has waited for it for callerGrace.
type creation struct {
	done   chan struct{}
	cancel context.CancelFunc
	// waiters counts the callers; guarded by the model's lock.
	waiters int
	// abandoned cancels the creation when no caller joins it in time; nil while there is
	// one. Guarded likewise.
	abandoned *time.Timer
	// cancelled is true once it is cancelled; guarded likewise.
	cancelled bool
	// lasting is true for what goes on when all callers have gone.
	lasting bool
	// volume and err are the result, valid once done is closed.
	volume *lvmdv1.Volume
	err    error
}

// CreateVolume implements lvmdv1.LVMDServer.
func (s *Service) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	ident, err := identityFor(r)
	if err != nil {
		return nil, err
	}
	v, op, err := s.admit(ident)
	if err != nil {
		return nil, err
	}
	if op == nil {
		return &lvmdv1.CreateVolumeResponse{Volume: v}, nil
	}
	select {
	case <-op.done:
		if op.err != nil {
			return nil, op.err
		}
		return &lvmdv1.CreateVolumeResponse{Volume: op.volume}, nil
	case <-ctx.Done():
		s.leave(op)
		return nil, publicError("creating volume "+ident.Name, ctx.Err())
	}
}

// admit decides about a request at one instant: the volume is there, or its
// creation is under way and joined, or there is room and its creation begins.
func (s *Service) admit(ident identity) (*lvmdv1.Volume, *creation, error) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isStopping() {
		return nil, nil, errStopping
	}
	c := m.class(ident.Class)
	if c != nil {
		ident.Class = c.Name
		ident.DAX = c.Medium == config.PMEM && !ident.Block
	}
	if err := ident.notMapped(); err != nil {
		return nil, nil, err
	}
	if v := m.names[ident.key()]; v != nil {
		if d := v.rec.Ident.difference(ident); d != "" {
			return nil, nil, requestDiffers(ident.Name, d)
		}
		switch {
		case v.rec.Phase == ready:
			return v.proto(), nil, nil
		case v.op == nil:
			// Unfinished: go on with what is there.
			return nil, s.begin(v, s.finishCreation), nil
		case v.op.cancelled:
			return nil, nil, operationPending("an earlier, cancelled creation of volume %q is being undone", ident.Name)
		}
		v.op.join()
		return nil, v.op, nil
	}
	switch {
	case c == nil && ident.DefaultClass:
		return nil, nil, classNotFound("no device class was named and no class is the default; %s", m.classNames())
	case c == nil || c.reported == nil:
		return nil, nil, classNotFound("no device class %q; %s", ident.Class, m.classNames())
	}
	if err := ident.checkMedium(); err != nil {
		return nil, nil, err
	}
	if !ident.Block {
		ident.FSUUID = newUUID()
	}
	var p *part
	var fit fit
	var from *making
	var err error
	if ident.Source != "" {
		p, fit, from, err = m.chooseFor(c, &ident)
	} else {
		p, fit, err = c.choose(ident)
	}
	if err != nil {
		return nil, nil, err
	}
	g := p.group
	v := &volume{
		group: g, pool: p.pool, layout: p.layout(), extents: fit.extents, segments: fit.segments, promisedText: fit.text,
		rec: record{ID: newID(), Group: g.name, Phase: creating, Ident: ident, Created: time.Now().UTC().Truncate(time.Millisecond)},
	}
	v.promise()
	m.add(v)
	steps := s.carve
	if from != nil {
		v.make(from)
		steps = s.carveFrom
	}
	op := s.begin(v, steps)
	op.lasting = from != nil && !from.snapshot
	m.publish(g, v)
	return nil, op, nil
}

// begin starts a creation in the background. The caller holds the model's lock.
func (s *Service) begin(v *volume, steps func(context.Context, *volume) error) *creation {
	ctx, cancel := context.WithCancel(onBehalfOf(s.work, v.rec.Ident.Owner))
	op := &creation{done: make(chan struct{}), cancel: cancel, waiters: 1}
	v.op = op
	s.spawn(func() {
		defer cancel()
		err := steps(ctx, v)
		s.model.mu.Lock()
		v.op = nil
		op.attended()
		v.made()
		if err != nil {
			op.err = publicError("creating volume "+v.rec.Ident.Name, err)
		} else {
			op.volume = v.proto()
		}
		s.model.mu.Unlock()
		close(op.done)
	})
	return op
}

// leave is called when a caller has gone before the end.
func (s *Service) leave(op *creation) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	op.waiters--
	if op.waiters > 0 || op.lasting {
		return
	}
	op.abandoned = time.AfterFunc(s.callerGrace, func() {
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		if op.waiters == 0 {
			op.stop()
		}
	})
}

// join adds a caller. It, attended, stop and isUnattended are called with the model's lock.
func (op *creation) join() {
	op.waiters++
	op.attended()
}

// attended ends the time within which a caller must come.
func (op *creation) attended() {
	if op.abandoned != nil {
		op.abandoned.Stop()
		op.abandoned = nil
	}
}

// stop cancels the creation, which is undone.
func (op *creation) stop() {
	op.cancelled = true
	op.cancel()
}

// isUnattended reports whether the creation goes on although no caller waits for it.
func (op *creation) isUnattended() bool { return op.lasting || op.waiters == 0 }

// carve makes a volume from nothing: intent, logical volume, file system. On
// failure nothing of it is left, or a tombstone.
func (s *Service) carve(ctx context.Context, v *volume) error {
	if err := s.journal.put(v.rec); err != nil {
		s.undoPromise(v)
		return err
	}
	s.crash("create: intent written")
	g := v.group
	var pieces []lvm.Piece
	var unmapped error
	if v.pool != nil {
		return s.carveThin(ctx, v)
	}
	err := s.changeBy(ctx, g, v.layout.Commits(), -v.takes(v.extents),
		func(ctx context.Context) error {
			err := s.lvm.Create(forClassOf(ctx, v), s.createOptions(v))
			if err == nil {
				pieces, unmapped = s.lvm.Mapping(g.name, v.rec.ID)
			}
			return err
		},
		func() []*volume {
			v.unclean = g.taken(pieces, 0, v.extents*g.info.ExtentSize, unmapped)
			v.occupy(pieces, unmapped)
			// The volume is reported as being created, with its size, since it
			// was admitted: nothing of that changes here.
			v.redeem()
			g.exists[v.rec.ID] = true
			return nil
		})
	return s.carved(ctx, v, err)
}

// carved goes on after the command that made a volume, or failed to.
func (s *Service) carved(ctx context.Context, v *volume, err error) error {
	if err != nil {
		s.undoCarve(v)
		return err
	}
	s.crash("create: carved")
	if err := s.finishCreation(ctx, v); err != nil {
		s.noteDisks(v.group, err)
		s.entomb(v)
		return err
	}
	return nil
}

// finishCreation brings a volume that LVM has made to the state that its users
// expect.
func (s *Service) finishCreation(ctx context.Context, v *volume) error {
	var done record
	err := s.prepare(ctx, v)
	if err == nil {
		s.crash("create: formatted")
		done = v.rec
		if done.Phase == emptied {
			done.Emptied = time.Now().UTC().Truncate(time.Millisecond)
		}
		done.Phase = ready
		if err = ctx.Err(); err == nil {
			err = s.journal.put(done, s.remember(v.group))
		}
	}
	if err != nil {
		return err
	}
	s.crash("create: ready")
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v.rec.Phase, v.rec.Emptied = ready, done.Emptied
	s.model.publish(v.group, v)
	return nil
}

// prepare clears what must not show of what lay there before, and formats.
func (s *Service) prepare(ctx context.Context, v *volume) error {
	if v.rec.Ident.Source != "" {
		if err := s.fillFrom(ctx, v); err != nil {
			return err
		}
		return s.ownUUID(ctx, v)
	}
	device, err := s.blank(ctx, v)
	if err != nil {
		return err
	}
	s.model.mu.Lock()
	v.activeAt(device)
	s.model.mu.Unlock()
	if v.rec.Ident.Block || v.rec.Ident.isLUKS() {
		return ctx.Err()
	}
	if err := s.formatting.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.formatting.Release(1)
	ctx, cancel := context.WithTimeout(ctx, formatTimeout)
	defer cancel()
	if err := s.format(ctx, device.Path, v.rec.Ident.formatOptions()); err != nil {
		return fmt.Errorf("formatting: %w", err)
	}
	return nil
}

// blank makes sure that nothing shows of what lay where a volume lies, and
// returns its device.
func (s *Service) blank(ctx context.Context, v *volume) (lvm.Device, error) {
	if v.isEncrypted() {
		return s.encrypt(ctx, v)
	}
	device, err := s.lvm.Device(v.group.name, v.rec.ID)
	if err != nil {
		return lvm.Device{}, fmt.Errorf("the new volume's device: %w", err)
	}
	h, err := s.open(ctx, v)
	if err != nil {
		return lvm.Device{}, fmt.Errorf("the new volume's device: %w", err)
	}
	err = s.clearNew(ctx, v, h)
	if err = errors.Join(err, h.Close()); err != nil {
		return lvm.Device{}, fmt.Errorf("clearing the new volume: %w", err)
	}
	return device, nil
}

// undoCarve takes back a creation whose command failed: LVM's metadata, which
// was scanned after the failure, says whether anything was made.
func (s *Service) undoCarve(v *volume) {
	s.model.mu.Lock()
	unknown := v.group.stale || v.group.exists[v.rec.ID]
	if unknown {
		v.redeem()
	}
	s.model.mu.Unlock()
	if unknown {
		s.entomb(v)
		return
	}
	s.undoPromise(v)
	if err := s.journal.remove([]string{v.rec.ID}); err != nil {
		s.log.Error("intent is left in the journal until the next start", "volume", v.rec.ID, "error", err)
	}
}

// undoPromise takes back a creation that had no effect.
func (s *Service) undoPromise(v *volume) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v.redeem()
	s.model.drop(v)
	s.model.publish(v.group, v)
}

// entomb makes a volume that was never handed out a tombstone.
func (s *Service) entomb(v *volume) {
	s.model.mu.Lock()
	s.model.bury(v)
	rec := v.rec
	s.model.publish(v.group, v)
	s.model.mu.Unlock()
	if err := s.journal.put(rec); err != nil {
		// The intent is still there, and the next start makes the same of it.
		s.log.Error("tombstone is not in the journal", "volume", v.rec.ID, "error", err)
	}
	v.group.wakeReaper()
}
