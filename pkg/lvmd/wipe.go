package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	// wipeChunk is wiped at a time: small enough that stopping never waits
	// long for it.
	wipeChunk = 64 << 20
	// wipeCheckpoint is how much is wiped between two records of progress. A
	// crash repeats at most this much.
	wipeCheckpoint = 1 << 30
	// A failed wipe or removal is tried again after a delay that doubles.
	firstRetry = 250 * time.Millisecond
	lastRetry  = time.Minute
	// Of so many chunks, one is of the volume that has waited longest.
	fairEvery = 4
)

// errThrottled is returned for a chunk that the rate of its class does not allow yet.
var errThrottled = errors.New("its class is wiped at a lower rate")

// wipeLoop wipes the group's tombstones until ctx is done, chunk by chunk. Small volumes do
// not wait for large ones: most chunks are of the volume with the least left to do, which
// makes the mean wait the least possible. One of fairEvery is of the volume that has waited
// longest, and of these the largest, so that large ones end, too. A class that is at its
// rate holds up no other class.
func (s *Service) wipeLoop(ctx context.Context, g *group) {
	for ctx.Err() == nil {
		v, retry := s.nextToWipe(g)
		if v == nil {
			if !sleepUntil(ctx, g.reap, retry) {
				return
			}
			continue
		}
		if err := s.wipeChunk(ctx, v); err != nil && !errors.Is(err, errThrottled) && ctx.Err() == nil {
			s.log.Warn("wiping failed and will be tried again", "volume", v.rec.ID, "error", err)
			s.postpone(v)
		}
	}
}

// nextToWipe picks a tombstone. When all of them must wait, it returns until
// when; the zero time means for an event.
func (s *Service) nextToWipe(g *group) (best *volume, retry time.Time) {
	now := time.Now()
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if !g.canFree() {
		return nil, time.Time{}
	}
	left := func(v *volume) int64 { return v.extents*g.info.ExtentSize - v.rec.Wiped }
	before := func(a, b *volume) bool {
		if g.chunks%fairEvery == 0 {
			return a.waitsSince < b.waitsSince || a.waitsSince == b.waitsSince && left(a) > left(b)
		}
		return left(a) < left(b)
	}
	for _, v := range s.model.volumes {
		if v.group != g || v.rec.Phase != deleting || v.wiped || v.needsMark() {
			continue
		}
		if v.waitsSince == 0 {
			v.waitsSince = g.chunks + 1
		}
		switch {
		case v.retryAt.After(now):
			retry = earlier(retry, v.retryAt)
		case best == nil || before(v, best):
			best = v
		}
	}
	if best != nil {
		g.chunks++
		best.waitsSince = g.chunks + 1
	}
	return best, retry
}

// wipeChunk does one step for a tombstone: open it, or zero a chunk of it, or
// note that it is done. Only the wipe loop calls it.
func (s *Service) wipeChunk(ctx context.Context, v *volume) error {
	s.model.mu.Lock()
	h, off, halfMade := v.handle, v.rec.Wiped, v.halfMade
	s.model.mu.Unlock()
	if v.isEncrypted() && h == nil {
		if err := s.lvm.ForgetKey(v.rec.ID); err != nil {
			return err
		}
	}
	if v.rec.Ident.isLUKS() && off == 0 && !halfMade {
		var err error
		if h, err = s.eraseHeader(ctx, v, h); err != nil {
			return err
		}
	}
	if halfMade {
		// It was never written to.
		return s.skipWipe(v, h)
	}
	if v.pool != nil {
		return s.unmapChunk(v, h, off)
	}
	if h == nil {
		var err error
		if h, err = s.openTombstone(ctx, v); err != nil {
			return err
		}
		s.model.mu.Lock()
		v.handle = h
		s.model.mu.Unlock()
	}
	size := h.Size()
	if err := s.checkLength(v, size); err != nil {
		return err
	}
	if off < size {
		n, err := s.clear(v, h, off, size)
		if err != nil {
			return err
		}
		off += n
		s.crash("delete: chunk wiped")
	}
	done := off >= size
	checkpoint := off/s.wipeCheckpoint > v.rec.Wiped/s.wipeCheckpoint
	if done || checkpoint {
		// Zeroes must be on the disk before anything relies on them.
		if err := h.Sync(); err != nil {
			return err
		}
	}
	s.model.mu.Lock()
	v.rec.Wiped = off
	v.failures = 0
	rec, distrusted := v.rec, v.group.distrusted
	s.model.mu.Unlock()
	if !done {
		if checkpoint {
			return s.journal.put(rec)
		}
		return nil
	}
	var pieces []lvm.Piece
	if !rec.Soiled {
		var err error
		if pieces, err = s.lvm.Mapping(v.group.name, rec.ID); err != nil {
			s.log.Warn("a wiped volume's space will be wiped again", "volume", rec.ID, "error", err)
		}
	}
	if err := h.Close(); err != nil {
		s.log.Warn("closing a wiped volume", "volume", v.rec.ID, "error", err)
	}
	s.crash("delete: wiped")
	s.model.mu.Lock()
	if v.group.distrusted != distrusted {
		pieces = nil
	}
	v.handle, v.wiped, v.pieces = nil, true, pieces
	s.model.mu.Unlock()
	v.group.wakeRemover()
	return nil
}

// checkLength refuses to wipe what a tombstone's device shows beyond the volume: it
// may be another's. Why it does, mending and a scan settle; the device is given up
// until then.
func (s *Service) checkLength(v *volume, size int64) error {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	known := v.extents * v.group.info.ExtentSize
	if size <= known {
		return nil
	}
	v.group.doubtful = true
	_ = v.handle.Close()
	v.handle = nil
	return fmt.Errorf("its device has %d bytes, and the volume %d", size, known)
}

// clear does to the next chunk what the volume's class wants, and returns how
// many bytes that were. A class that is not configured any more wipes. Where the class is
// at its rate, clear does nothing, notes when it may, and returns errThrottled.
func (s *Service) clear(v *volume, h lvm.Handle, off, size int64) (int64, error) {
	how, limit := config.WipeAuto, (*rate.Limiter)(nil)
	s.model.mu.Lock()
	if c := s.model.class(v.rec.Ident.Class); c != nil {
		how, limit = c.Wipe, c.wiping
	}
	if v.isEncrypted() && how != config.WipeDiscard {
		how = config.WipeNone // The key is gone.
	}
	s.model.mu.Unlock()
	n := min(int64(wipeChunk), size-off)
	if limit != nil && how != config.WipeNone {
		n = min(n, int64(limit.Burst()))
		reservation := limit.ReserveN(time.Now(), int(n))
		if wait := reservation.Delay(); wait > 0 {
			reservation.Cancel()
			s.model.mu.Lock()
			v.retryAt = time.Now().Add(wait)
			s.model.mu.Unlock()
			return 0, errThrottled
		}
	}
	switch how {
	case config.WipeNone:
		s.soil(v)
		return size - off, nil
	case config.WipeDiscard:
		s.soil(v)
		return n, h.Discard(off, n)
	case config.WipeZero:
		return n, h.Overwrite(off, n)
	default:
		return n, h.Zero(off, n)
	}
}

// soil notes that something of a tombstone is left as it is.
func (s *Service) soil(v *volume) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v.rec.Soiled = true
}

// openTombstone opens the device, activating the volume when there is none:
// after a reboot in the middle of a deletion, for example.
func (s *Service) openTombstone(ctx context.Context, v *volume) (lvm.Handle, error) {
	h, err := s.lvm.Open(v.group.name, v.rec.ID)
	if !errors.Is(err, lvm.ErrNotFound) {
		return h, err
	}
	done, err := s.take(ctx, v.group)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.lvm.Activate(s.work, v.group.name, []string{v.rec.ID}); err != nil {
		return nil, err
	}
	h, err = s.lvm.Open(v.group.name, v.rec.ID)
	if errors.Is(err, lvm.ErrNotFound) {
		// Why it has none, a scan may tell.
		err = errors.Join(err, s.rescan(v.group, nil))
	}
	return h, err
}

// postpone delays the next attempt on a tombstone.
func (s *Service) postpone(v *volume) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	delay := lastRetry
	if v.failures < 8 {
		delay = firstRetry << v.failures
	}
	v.failures++
	v.retryAt = time.Now().Add(delay)
}

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// sleepUntil waits for an event or, unless it is zero, for a time. It returns
// false when ctx is done.
func sleepUntil(ctx context.Context, event <-chan struct{}, until time.Time) bool {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-event:
	case <-timer:
	case <-ctx.Done():
		return false
	}
	return true
}

// skipWipe hands a tombstone that needs no wiping, or no more of it, to the removal.
func (s *Service) skipWipe(v *volume, h lvm.Handle) error {
	if h != nil {
		if err := h.Close(); err != nil {
			s.log.Warn("closing a deleted volume", "volume", v.rec.ID, "error", err)
		}
	}
	s.crash("delete: wiped")
	s.model.mu.Lock()
	v.handle, v.wiped = nil, true
	s.model.mu.Unlock()
	v.group.wakeRemover()
	return nil
}
