package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// WipeChunk is the size of a step, in bytes: small enough to stop soon.
	WipeChunk = 64 << 20
	// wipeCheckpoint bounds the bytes that are wiped again after a crash.
	wipeCheckpoint = 1 << 30
	// unmapChunk is the unit of unmapping a thin volume, in bytes: a multiple of every chunk size,
	// which the kernel unmaps within a moment.
	unmapChunk = 1 << 30
	// slowAfter exceeds the time of a chunk on most disks.
	slowAfter = time.Second
	// skipAfter failures take about a minute.
	skipAfter = 8
	// reportAfter failures are more than a disk's short trouble causes.
	reportAfter = 2
	// skipUnit is the smallest part that a wipe skips, in bytes, and maxSkipped bounds those of a
	// chunk.
	skipUnit   = 64 << 10
	maxSkipped = 16
)

// WipeLoop wipes the group's tombstones chunk by chunk, in the order of inventory.NextToWipe, until
// ctx is done and all steps have ended. A class at its rate does not delay other classes, and a
// slow or hanging disk does not delay other disks: steps run one at a time, except that each set of
// slow disks has one more step waiting.
func (r *Reclaimer) WipeLoop(ctx context.Context, g *volumegroup.Group) {
	var steps sync.WaitGroup
	defer steps.Wait()
	for ctx.Err() == nil {
		w, ok, retry := g.NextToWipe()
		if !ok {
			if !g.Wipe.Wait(ctx, retry) {
				return
			}
			continue
		}
		if w.MustLocate {
			w.Locate(volumegroup.Disks(r.LVM, w.Volume), false)
			r.end(g, &w)
			continue
		}
		done := make(chan struct{})
		steps.Go(func() {
			defer close(done)
			r.step(ctx, g, w)
		})
		look := time.NewTimer(r.SlowAfter)
		select {
		case <-done:
		case <-look.C:
			r.Log.Info("wiping a volume waits for its disks", "group", g.Name(), "volume", w.Record.ID)
			w.Locate(volumegroup.Disks(r.LVM, w.Volume), true)
		}
		look.Stop()
	}
}

func (r *Reclaimer) step(ctx context.Context, g *volumegroup.Group, w inventory.WipeStep) {
	err := r.wipe(ctx, g, &w)
	w.Failed = err != nil && ctx.Err() == nil
	if err != nil || w.RetryAt.IsZero() {
		w.Refused = refusesWrites(err) && w.Failures >= reportAfter
	}
	if r.end(g, &w) && w.Failed {
		r.Log.Warn("wiping failed and will be tried again", "volume", w.Record.ID, "error", err)
	}
}

// end ends a step, and wakes the loops that wait for it. If the volume is gone, it closes the
// device and returns false.
func (r *Reclaimer) end(g *volumegroup.Group, w *inventory.WipeStep) (kept bool) {
	kept, waited := w.End()
	if !kept {
		r.Log.Warn("deleted volume vanished during its wipe: it was removed or renamed", "group", g.Name(), "volume", w.Record.ID)
		r.close(w)
	}
	if w.Done {
		g.Remove.Set()
	}
	if waited {
		g.Wipe.Set()
	}
	return kept
}

// wipe opens a tombstone, and clears its next chunk.
func (r *Reclaimer) wipe(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if w.Volume.IsEncrypted() && w.Handle == nil {
		if err := r.LVM.ForgetKey(w.Record.ID); err != nil {
			return err
		}
	}
	if w.HalfMade {
		// It was never written to.
		return r.finish(w)
	}
	if !w.Thin {
		if err := r.openWhole(ctx, g, w); err != nil {
			return err
		}
	}
	if w.Record.Ident.IsLUKS() && w.Record.Wiped == 0 {
		if err := r.eraseHeader(ctx, g, w); err != nil {
			return err
		}
	}
	if w.Thin {
		return r.unmap(ctx, g, w)
	}
	off := w.Record.Wiped
	if off < w.Size {
		n, err := r.clear(w)
		if n == 0 || err != nil {
			return err
		}
		off += n
		r.crash("delete: chunk wiped")
	}
	done := off >= w.Size
	checkpoint := off/r.Checkpoint > w.Record.Wiped/r.Checkpoint
	if done || checkpoint {
		// Nothing may rely on zeroes that are not on the disk.
		if err := w.Handle.Sync(); err != nil {
			return err
		}
	}
	w.Record.Wiped = off
	switch {
	case done:
		w.Segments = r.zeroed(g, w)
		return r.finish(w)
	case checkpoint:
		return r.putProgress(w)
	}
	return nil
}

// putProgress records the wiped part of a tombstone, unless a scan has lost it: an administrator
// who renamed the volume may write to it, and rename it back.
func (r *Reclaimer) putProgress(w *inventory.WipeStep) error {
	return r.Journal.PutVolume(w.Record, func(*journal.Tx) error {
		if r.Inventory.Volume(w.Record.ID) != w.Volume {
			return errors.New("the volume is gone")
		}
		return nil
	})
}

// zeroed returns the segments of a wiped tombstone if they hold zeroes.
func (r *Reclaimer) zeroed(g *volumegroup.Group, w *inventory.WipeStep) []lvm.Segment {
	if w.Record.NotZeroed {
		return nil
	}
	segments, err := r.LVM.Mapping(g.Name(), w.Record.ID)
	if err == nil {
		err = checkWiped(segments, w.Size)
	}
	if err != nil {
		r.Log.Warn("a wiped volume's space will be wiped again", "volume", w.Record.ID, "error", err)
		return nil
	}
	return segments
}

// checkWiped fails if the segments do not have the wiped size: a repair may have lengthened the
// device.
func checkWiped(segments []lvm.Segment, size int64) error {
	var mapped int64
	for _, s := range segments {
		mapped += s.Length
	}
	if mapped != size {
		return fmt.Errorf("it was wiped to %s, and has %s", quantity.Bytes(size), quantity.Bytes(mapped))
	}
	return nil
}

func (r *Reclaimer) finish(w *inventory.WipeStep) error {
	r.close(w)
	r.crash("delete: wiped")
	w.Done = true
	return nil
}

func (r *Reclaimer) close(w *inventory.WipeStep) {
	if w.Handle == nil {
		return
	}
	if err := w.Handle.Close(); err != nil {
		r.Log.Warn("closing a deleted volume", "volume", w.Record.ID, "error", err)
	}
	w.Handle = nil
}

// clear applies the class' wipe mode to the next chunk, and returns its size. It returns zero while
// the class is at its rate, and sets RetryAt.
func (r *Reclaimer) clear(w *inventory.WipeStep) (n int64, err error) {
	off := w.Record.Wiped
	n = min(int64(WipeChunk), w.Size-off)
	if w.Limit != nil && w.How != config.WipeNone {
		n = min(n, int64(w.Limit.Burst()))
		reservation := w.Limit.ReserveN(time.Now(), int(n))
		if wait := reservation.Delay(); wait > 0 {
			reservation.Cancel()
			w.RetryAt = time.Now().Add(wait)
			return 0, nil
		}
	}
	write := w.Handle.Zero
	switch w.How {
	case config.WipeNone:
		w.Record.NotZeroed = true
		return w.Size - off, nil
	case config.WipeDiscard:
		w.Record.NotZeroed = true
		write = w.Handle.Discard
	case config.WipeZero:
		write = w.Handle.Overwrite
	case config.WipeAuto:
	}
	if w.Failures < r.SkipAfter {
		return n, write(off, n)
	}
	return n, r.writeAround(w, write, off, n)
}

// writeAround writes a chunk except for the parts that its disk refuses. It fails if these are
// many, or all: the disk may be away for a while.
func (r *Reclaimer) writeAround(w *inventory.WipeStep, write func(off, length int64) error, from, length int64) error {
	var skipped []int64
	written := false
	var try func(off, n int64) error
	try = func(off, n int64) error {
		err := write(off, n)
		switch {
		case err == nil:
			written = true
			return nil
		case !refusesWrites(err):
			return err
		case n > skipUnit:
			half := max(skipUnit, n/2/skipUnit*skipUnit)
			if err := try(off, half); err != nil {
				return err
			}
			return try(off+half, n-half)
		case len(skipped) == maxSkipped || !written && off+n == from+length:
			return err
		}
		skipped = append(skipped, off)
		return nil
	}
	if err := try(from, length); err != nil || len(skipped) == 0 {
		return err
	}
	w.Record.NotZeroed = true
	r.Log.Error("parts of a deleted volume keep what they hold, as their disk refuses writes", "volume", w.Record.ID, "offsets", skipped, "length", skipUnit)
	return nil
}

// refusesWrites reports whether a disk answered with one of the errors that a bad sector causes.
func refusesWrites(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO)
}

// open opens a tombstone's device if need be, and activates the volume if it has none, as after a
// reboot. It fails if another logical volume, perhaps a new one, depends on the tombstone.
func (r *Reclaimer) open(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if w.Handle == nil {
		h, err := r.LVM.Open(g.Name(), w.Record.ID)
		if errors.Is(err, lvm.ErrNotFound) {
			h, err = r.activate(ctx, g, w.Record.ID)
		}
		if err != nil {
			return err
		}
		w.Handle = h
	}
	return volumegroup.CheckDependents(ctx, r.Groups, w.Volume)
}

func (r *Reclaimer) activate(ctx context.Context, g *volumegroup.Group, id string) (blockdev.Handle, error) {
	done, err := r.Groups.Acquire(ctx, g)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := r.LVM.Activate(r.Groups.Work, g.Name(), []string{id}); err != nil {
		return nil, err
	}
	h, err := r.LVM.Open(g.Name(), id)
	if errors.Is(err, lvm.ErrNotFound) {
		// A scan may show why it has none.
		err = errors.Join(err, r.Groups.Rescan(g))
	}
	return h, err
}

// openWhole also checks the device's size.
func (r *Reclaimer) openWhole(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if err := r.open(ctx, g, w); err != nil {
		return err
	}
	if size := w.Handle.Size(); size != w.Size {
		// A repair and a scan follow. A handle keeps the size from when it was opened, so reopen.
		r.close(w)
		w.Suspect = true
		return fmt.Errorf("its device has %s, and the volume has %s", quantity.Bytes(size), quantity.Bytes(w.Size))
	}
	return nil
}

// eraseHeader overwrites the header of a volume that its user encrypted, durably and first,
// whatever its class says: without it, the data cannot be decrypted even with the key.
func (r *Reclaimer) eraseHeader(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if err := r.open(ctx, g, w); err != nil {
		return err
	}
	if err := w.Handle.Overwrite(0, min(luks.HeaderBytes, w.Handle.Size())); err != nil {
		return err
	}
	if err := w.Handle.Sync(); err != nil {
		return err
	}
	r.crash("delete: header erased")
	return nil
}

// EraseKey makes the data of a volume that lvmd encrypts unreadable as soon as it is a tombstone.
// It closes h, the encrypted device's handle or nil, and returns nil; for other volumes it returns
// h. If it fails, WipeLoop retries.
func (r *Reclaimer) EraseKey(v *inventory.Volume, h blockdev.Handle) blockdev.Handle {
	if !v.IsEncrypted() {
		return h
	}
	if h != nil {
		_ = h.Close()
	}
	if err := r.LVM.ForgetKey(v.ID()); err != nil {
		r.Log.Warn("the key of a deleted volume could not be forgotten yet", "volume", v.ID(), "error", err)
		return nil
	}
	r.crash("delete: key forgotten")
	return nil
}

// unmap is wipe for thin volumes and snapshots: it returns the next chunk to the pool. Their pool
// zeroes blocks that it gives out, so nothing needs a wipe. But removing a large mapped volume with
// one command may exceed the command's deadline, and would hold the group's slot; this does not
// need the slot.
//
// Snapshots, which have no device, are removed as they are. So are volumes that cannot be unmapped:
// if their removal fails, too, LVM reports why.
func (r *Reclaimer) unmap(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if w.Handle == nil {
		h, err := r.LVM.Open(g.Name(), w.Record.ID)
		if errors.Is(err, lvm.ErrBusy) {
			return err
		}
		if err != nil {
			return r.finish(w)
		}
		w.Handle = h
	}
	if err := volumegroup.CheckDependents(ctx, r.Groups, w.Volume); err != nil {
		return err
	}
	off, size := w.Record.Wiped, w.Handle.Size()
	n := min(int64(unmapChunk), size-off)
	err := w.Handle.Discard(off, n)
	if err != nil {
		r.Log.Warn("a deleted thin volume is removed with what it holds", "volume", w.Record.ID, "error", err)
	}
	r.crash("delete: chunk unmapped")
	w.Record.Wiped = off + n
	if err != nil || off+n >= size {
		return r.finish(w)
	}
	return nil
}
