package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	// WipeChunk is wiped at a time, in bytes: small enough that stopping never waits
	// long for it.
	WipeChunk = 64 << 20
	// wipeCheckpoint is how much is wiped between two records of progress. A
	// crash repeats at most this much.
	wipeCheckpoint = 1 << 30
	// unmapChunk is how much of a thin volume is given back to its pool at a time: a
	// multiple of every chunk size, and what the kernel unmaps within a moment.
	unmapChunk = 1 << 30
	// slowAfter is how long a step may take before others do not wait for it. A chunk takes less on
	// most disks.
	slowAfter = time.Second
)

// WipeLoop wipes the group's tombstones until ctx is done, chunk by chunk, in the order of
// inventory.NextToWipe. A class that is at its rate holds up no other class, and a disk that is
// slow or does not answer no tombstones on other disks: steps are done one at a time, but for
// those that wait for their disks, of which there is one for each set of disks. It returns when
// all of them have ended.
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

// step does one step for a tombstone, and ends it.
func (r *Reclaimer) step(ctx context.Context, g *volumegroup.Group, w inventory.WipeStep) {
	err := r.wipe(ctx, g, &w)
	w.Failed = err != nil && ctx.Err() == nil
	if r.end(g, &w) && w.Failed {
		r.Log.Warn("wiping failed and will be tried again", "volume", w.Record.ID, "error", err)
	}
}

// end ends a step, and has the loops look again that wait for what came of it. It returns false, and
// closes the device, when the volume is gone.
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

// wipe does one step for a tombstone: open it, or zero a chunk of it, or
// note that it is done.
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
		// Zeroes must be on the disk before anything relies on them.
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

// putProgress makes durable how much of a tombstone is wiped, unless a scan has lost it: an administrator
// who renamed the volume may write to it, and give it its name back.
func (r *Reclaimer) putProgress(w *inventory.WipeStep) error {
	return r.Journal.PutVolume(w.Record, func(*journal.Tx) error {
		if r.Inventory.Volume(w.Record.ID) != w.Volume {
			return errors.New("the volume is gone")
		}
		return nil
	})
}

// zeroed is where a wiped tombstone lies, if that holds zeroes.
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

// checkWiped returns an error where a volume that was wiped to a size lies in segments of another: a
// repair may have lengthened its device since.
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

// finish hands a tombstone to the removal that needs no wiping, or no more of it.
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

// clear does to the next chunk what the volume's class wants, and returns how many bytes that were: none
// where the class is at its rate, and then the next step waits until it may.
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
	switch w.How {
	case config.WipeNone:
		w.Record.NotZeroed = true
		return w.Size - off, nil
	case config.WipeDiscard:
		w.Record.NotZeroed = true
		return n, w.Handle.Discard(off, n)
	case config.WipeZero:
		return n, w.Handle.Overwrite(off, n)
	default:
		return n, w.Handle.Zero(off, n)
	}
}

// open opens a tombstone's device if it is not open, activating the volume when there is none:
// after a reboot in the middle of a deletion, for example.
//
// It fails while another logical volume depends on the tombstone: that may have been made a moment
// ago.
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
		// Why it has none, a scan may show.
		err = errors.Join(err, r.Groups.Rescan(g))
	}
	return h, err
}

// openWhole opens a tombstone whose device has the size that the volume has.
func (r *Reclaimer) openWhole(ctx context.Context, g *volumegroup.Group, w *inventory.WipeStep) error {
	if err := r.open(ctx, g, w); err != nil {
		return err
	}
	if size := w.Handle.Size(); size != w.Size {
		// Why, a repair and a scan find out. A handle keeps the size that its device had when it was opened.
		r.close(w)
		w.Suspect = true
		return fmt.Errorf("its device has %s, and the volume has %s", quantity.Bytes(size), quantity.Bytes(w.Size))
	}
	return nil
}

// eraseHeader overwrites the header of a tombstone that its user encrypted, durably and before
// anything else is done to it, whatever its class says: without it, what is left cannot be
// decrypted, with the key or without.
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

// EraseKey ends what a volume that lvmd encrypts holds, as soon as it is a tombstone. The handle is
// of its device, or nil, and is closed: what is returned is what is left of it.
// When it fails, the wipe loop does it.
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

// unmap is wipe for thin volumes and snapshots. It gives the next chunk of the volume
// back to its pool, outside the group's exclusive slot: a command that removes a large volume
// that is mapped takes longer than a command may, and holds up all classes of its group. There is
// nothing to wipe: a pool zeroes what it gives to a volume.
//
// A snapshot has no device, and is removed as it is. So is a volume that cannot be unmapped: LVM
// says why, if the removal fails, too.
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
