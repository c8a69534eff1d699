package lvmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	// copyChunk is copied at a time.
	copyChunk = 4 << 20
	// copyBlock is the unit in which zeroes are left out where they need not be
	// written.
	copyBlock = 64 << 10
	// copyCheckpoint is how much is copied between two flushes, so that not all
	// of it waits in memory for the last one.
	copyCheckpoint = 256 << 20
	// copyNews is how often watchers are told of a copy's progress.
	copyNews = time.Second
	// maxCopying bounds how many copies run at once.
	maxCopying = 2
)

// carveCopy makes a volume that its source is copied to. The source is held
// open for lvmd alone, from before the first effect to the end: it cannot be
// mounted, and what is copied is what it holds all the time. The kernel lets
// others open a raw volume all the same, and write to it; then the copy fails,
// see unchanged. A copy that is interrupted is undone; nothing is known of what
// was written to the source in between.
func (s *Service) carveCopy(ctx context.Context, v *volume) error {
	source := v.making.source
	h, err := s.open(ctx, source)
	if err != nil {
		s.undoPromise(v)
		if errors.Is(err, lvm.ErrBusy) {
			return volumeInUse(source.rec.ID, err)
		}
		return fmt.Errorf("opening the source, volume %s: %w", source.rec.ID, err)
	}
	s.model.mu.Lock()
	v.making.handle = h
	s.model.mu.Unlock()
	return s.carve(ctx, v)
}

// copyFrom copies the source to a volume that LVM has made, durably.
func (s *Service) copyFrom(ctx context.Context, v *volume) error {
	if err := s.copying.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.copying.Release(1)
	to, err := s.open(ctx, v)
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	err = s.copyAll(ctx, v, to)
	if err = errors.Join(err, to.Close()); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return noSpace("copying volume %s: %v", v.making.source.rec.ID, err)
		}
		return fmt.Errorf("copying volume %s: %w", v.making.source.rec.ID, err)
	}
	s.crash("clone: copied")
	g := v.group
	// A copy may have taken hours: it is not given up for a long wait.
	return s.change(onOwnBehalf(ctx), g, 0,
		func(ctx context.Context) error { return s.lvm.Untag(forClassOf(ctx, v), g.name, v.rec.ID, tagCopying) },
		func() []*volume { return nil })
}

func (s *Service) copyAll(ctx context.Context, v *volume, to lvm.Handle) error {
	s.model.mu.Lock()
	from, unclean := v.making, v.unclean
	if !s.model.mustBeClean(v.rec.Ident) && to.Size() > 2*headAndTail {
		unclean = unclean.minus(span{headAndTail, to.Size() - headAndTail})
	}
	s.model.mu.Unlock()
	limit := s.copyLimit(v)
	unchanged, err := unchangedSince(from)
	if err != nil {
		return err
	}
	from.handle.Uncached()
	to.Uncached()
	size := from.handle.Size()
	buffer := make([]byte, copyChunk)
	told := time.Now()
	for off := int64(0); off < size; off += copyChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := buffer[:min(copyChunk, size-off)]
		if err := waitFor(ctx, limit, len(chunk)); err != nil {
			return err
		}
		if _, err := from.handle.ReadAt(chunk, off); err != nil {
			return fmt.Errorf("reading at byte %d: %w", off, err)
		}
		if err := writeChunk(to, chunk, off, v.pool != nil); err != nil {
			return fmt.Errorf("writing at byte %d: %w", off, err)
		}
		if done := off + int64(len(chunk)); done%copyCheckpoint == 0 {
			if err := errors.Join(to.Sync(), unchanged()); err != nil {
				return err
			}
		}
		s.crash("clone: chunk copied")
		s.model.mu.Lock()
		from.copied = off + int64(len(chunk))
		if time.Since(told) > copyNews {
			told = time.Now()
			s.model.publish(v.group, v)
		}
		s.model.mu.Unlock()
	}
	if err := unchanged(); err != nil {
		return err
	}
	// What the volume has more than its source.
	if err := s.zero(ctx, to, unclean.minus(span{0, size})); err != nil {
		return err
	}
	return to.Sync()
}

// unchangedSince returns a function that fails when something was written to the source of
// a copy since: the copy would be of no point in time. What is read and was written
// before is not in the page cache alone, as reading past that writes it, and then it counts.
func unchangedSince(from *making) (func() error, error) {
	written := func() (uint64, error) {
		if err := from.handle.Sync(); err != nil {
			return 0, err
		}
		return from.handle.Written()
	}
	before, err := written()
	if err != nil {
		return nil, err
	}
	return func() error {
		now, err := written()
		if err == nil && now != before {
			err = volumeWritten(from.source.rec.ID)
		}
		return err
	}, nil
}

// copyLimit is what limits the rate of copies to a volume, or nil.
func (s *Service) copyLimit(v *volume) *rate.Limiter {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if c := s.model.class(v.rec.Ident.Class); c != nil {
		return c.copying
	}
	return nil
}

// waitFor waits until a limit allows so many bytes more; nil is no limit.
func waitFor(ctx context.Context, limit *rate.Limiter, bytes int) error {
	for limit != nil && bytes > 0 {
		some := min(bytes, limit.Burst())
		if err := limit.WaitN(ctx, some); err != nil {
			return err
		}
		bytes -= some
	}
	return nil
}

// writeChunk writes a chunk; where the volume reads as zeroes already, blocks
// of zeroes are left out.
func writeChunk(to lvm.Handle, chunk []byte, off int64, zeroed bool) error {
	if !zeroed {
		_, err := to.WriteAt(chunk, off)
		return err
	}
	for len(chunk) > 0 {
		block := chunk[:min(copyBlock, len(chunk))]
		if !allZero(block) {
			if _, err := to.WriteAt(block, off); err != nil {
				return err
			}
		}
		chunk, off = chunk[len(block):], off+int64(len(block))
	}
	return nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
