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

// errThrottled is returned for a chunk that the rate of its class does not allow yet.
var errThrottled = errors.New("its class is wiped at a lower rate")

// WipeLoop wipes the group's tombstones until ctx is done, chunk by chunk, in the order of
// inventory.NextToWipe. A class that is at its rate holds up no other class, and a disk that is
// slow or does not answer no tombstones on other disks: steps are done one at a time, but for
// those that wait for their disks, of which there is one for each set of disks. It returns when
// all of them have ended.
func (r *Reclaimer) WipeLoop(ctx context.Context, g *volumegroup.Group) {
	var steps sync.WaitGroup
	defer steps.Wait()
	for ctx.Err() == nil {
		t, ok, retry := g.NextToWipe()
		if !ok {
			if !g.Wipe.Wait(ctx, retry) {
				return
			}
			continue
		}
		if t.MustLocate() {
			t.Locate(volumegroup.Disks(r.LVM, t.Volume), false)
			t.EndStep()
			continue
		}
		done := make(chan struct{})
		steps.Go(func() {
			defer close(done)
			r.step(ctx, g, t)
		})
		look := time.NewTimer(r.SlowAfter)
		select {
		case <-done:
		case <-look.C:
			r.Log.Info("wiping a volume waits for its disks", "group", g.Name(), "volume", t.ID())
			t.Locate(volumegroup.Disks(r.LVM, t.Volume), true)
		}
		look.Stop()
	}
}

// step does one step for a tombstone, and has the loop look again where others wait for its disks.
func (r *Reclaimer) step(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone) {
	defer func() {
		if t.EndStep() {
			g.Wipe.Set()
		}
	}()
	if err := r.wipe(ctx, g, t); err != nil && !errors.Is(err, errThrottled) && ctx.Err() == nil {
		r.Log.Warn("wiping failed and will be tried again", "volume", t.ID(), "error", err)
		r.Inventory.Postpone(t.Volume)
	}
}

// wipe does one step for a tombstone: open it, or zero a chunk of it, or
// note that it is done.
func (r *Reclaimer) wipe(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone) error {
	p := t.Progress()
	if t.IsEncrypted() && p.Handle == nil {
		if err := r.LVM.ForgetKey(t.ID()); err != nil {
			return err
		}
	}
	if p.HalfMade {
		// It was never written to.
		return r.skip(g, t, p.Handle)
	}
	if !t.IsThin() {
		if err := r.openWhole(ctx, g, t, &p); err != nil {
			return err
		}
	}
	if t.Ident().IsLUKS() && p.Wiped == 0 {
		if err := r.eraseHeader(ctx, g, t, &p); err != nil {
			return err
		}
	}
	if t.IsThin() {
		return r.unmap(ctx, g, t, p)
	}
	size, off := p.Handle.Size(), p.Wiped
	if off < size {
		n, err := r.clear(t, p.Handle, off, size)
		if err != nil {
			return err
		}
		off += n
		r.crash("delete: chunk wiped")
	}
	done := off >= size
	checkpoint := off/r.Checkpoint > p.Wiped/r.Checkpoint
	if done || checkpoint {
		// Zeroes must be on the disk before anything relies on them.
		if err := p.Handle.Sync(); err != nil {
			return err
		}
	}
	rec, forgotten := t.SetWiped(off)
	switch {
	case done:
		return r.finish(g, t, p.Handle, rec.NotZeroed, forgotten)
	case checkpoint:
		return r.Journal.PutVolume(rec)
	}
	return nil
}

// finish hands a wiped tombstone to the removal.
func (r *Reclaimer) finish(g *volumegroup.Group, t inventory.Tombstone, h blockdev.Handle, notZeroed bool, forgotten int) error {
	var segments []lvm.Segment
	if !notZeroed {
		var err error
		segments, err = r.LVM.Mapping(g.Name(), t.ID())
		if err == nil {
			err = checkWiped(segments, h.Size())
		}
		if err != nil {
			r.Log.Warn("a wiped volume's space will be wiped again", "volume", t.ID(), "error", err)
			segments = nil
		}
	}
	r.close(t.Volume, h)
	r.crash("delete: wiped")
	t.FinishWipe(segments, forgotten)
	g.Remove.Set()
	return nil
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

// skip hands a tombstone that needs no wiping, or no more of it, to the removal.
func (r *Reclaimer) skip(g *volumegroup.Group, t inventory.Tombstone, h blockdev.Handle) error {
	r.close(t.Volume, h)
	r.crash("delete: wiped")
	t.SkipWipe()
	g.Remove.Set()
	return nil
}

func (r *Reclaimer) close(v *inventory.Volume, h blockdev.Handle) {
	if h == nil {
		return
	}
	if err := h.Close(); err != nil {
		r.Log.Warn("closing a deleted volume", "volume", v.ID(), "error", err)
	}
}

// clear does to the next chunk what the volume's class wants, and returns how
// many bytes that were. Where the class is
// at its rate, clear does nothing, notes when it may, and returns errThrottled.
func (r *Reclaimer) clear(t inventory.Tombstone, h blockdev.Handle, off, size int64) (int64, error) {
	how, limit := t.Wiping()
	n := min(int64(WipeChunk), size-off)
	if limit != nil && how != config.WipeNone {
		n = min(n, int64(limit.Burst()))
		reservation := limit.ReserveN(time.Now(), int(n))
		if wait := reservation.Delay(); wait > 0 {
			reservation.Cancel()
			t.Delay(time.Now().Add(wait))
			return 0, errThrottled
		}
	}
	switch how {
	case config.WipeNone:
		t.SetNotZeroed()
		return size - off, nil
	case config.WipeDiscard:
		t.SetNotZeroed()
		return n, h.Discard(off, n)
	case config.WipeZero:
		return n, h.Overwrite(off, n)
	default:
		return n, h.Zero(off, n)
	}
}

// open opens a tombstone's device if it is not open, activating the volume when there is none:
// after a reboot in the middle of a deletion, for example.
//
// It fails while another logical volume depends on the tombstone: that may have been made a moment
// ago.
func (r *Reclaimer) open(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone, p *inventory.Progress) (err error) {
	if p.Handle == nil {
		p.Handle, err = r.LVM.Open(g.Name(), t.ID())
		if errors.Is(err, lvm.ErrNotFound) {
			p.Handle, err = r.activate(ctx, g, t)
		}
		if err != nil {
			return err
		}
		t.SetHandle(p.Handle)
	}
	return volumegroup.CheckDependents(ctx, r.Groups, t.Volume)
}

func (r *Reclaimer) activate(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone) (blockdev.Handle, error) {
	done, err := r.Groups.Acquire(ctx, g)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := r.LVM.Activate(r.Groups.Work, g.Name(), []string{t.ID()}); err != nil {
		return nil, err
	}
	h, err := r.LVM.Open(g.Name(), t.ID())
	if errors.Is(err, lvm.ErrNotFound) {
		// Why it has none, a scan may show.
		err = errors.Join(err, r.Groups.Rescan(g))
	}
	return h, err
}

// openWhole opens a tombstone whose device has the size that the volume has.
func (r *Reclaimer) openWhole(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone, p *inventory.Progress) error {
	if err := r.open(ctx, g, t, p); err != nil {
		return err
	}
	size := p.Handle.Size()
	if known, mistaken := t.SizeToWipe(size); size != known {
		// Why, a repair and a scan find out. A handle keeps the size that its device had when it was opened.
		if mistaken != nil {
			_ = mistaken.Close()
		}
		return fmt.Errorf("its device has %s, and the volume has %s", quantity.Bytes(size), quantity.Bytes(known))
	}
	return nil
}

// eraseHeader overwrites the header of a tombstone that its user encrypted, durably and before
// anything else is done to it, whatever its class says: without it, what is left cannot be
// decrypted, with the key or without.
func (r *Reclaimer) eraseHeader(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone, p *inventory.Progress) error {
	if err := r.open(ctx, g, t, p); err != nil {
		return err
	}
	if err := p.Handle.Overwrite(0, min(luks.HeaderBytes, p.Handle.Size())); err != nil {
		return err
	}
	if err := p.Handle.Sync(); err != nil {
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
	r.close(v, h)
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
func (r *Reclaimer) unmap(ctx context.Context, g *volumegroup.Group, t inventory.Tombstone, p inventory.Progress) error {
	if p.Handle == nil {
		h, err := r.LVM.Open(g.Name(), t.ID())
		if errors.Is(err, lvm.ErrBusy) {
			return err
		}
		if err != nil {
			return r.skip(g, t, nil)
		}
		p.Handle = h
		t.SetHandle(h)
	}
	if err := volumegroup.CheckDependents(ctx, r.Groups, t.Volume); err != nil {
		return err
	}
	n := min(int64(unmapChunk), p.Handle.Size()-p.Wiped)
	err := p.Handle.Discard(p.Wiped, n)
	if err != nil {
		r.Log.Warn("a deleted thin volume is removed with what it holds", "volume", t.ID(), "error", err)
	}
	r.crash("delete: chunk unmapped")
	t.SetWiped(p.Wiped + n)
	if err != nil || p.Wiped+n >= p.Handle.Size() {
		return r.skip(g, t, p.Handle)
	}
	return nil
}
