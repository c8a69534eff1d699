package lvmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

const (
	copyChunk = 4 << 20
	// copyBlock is the unit in which zeroes are skipped on a target that already reads as zeroes.
	copyBlock = 64 << 10
	// copyCheckpoint bounds the bytes, and copyInterval the time, between two records of
	// progress. The target is flushed before each.
	copyCheckpoint = 256 << 20
	copyInterval   = 5 * time.Second
	copyReport     = time.Second
	// At most maxCopying copies run in a volume group, maxCopies in all if those waiting for a
	// disk count, maxSameCopies on the same disks. Each holds a chunk in memory. A copy counts as
	// waiting after copyLook.
	maxCopying    = 2
	maxCopies     = 16
	maxSameCopies = 8
	copyLook      = 10 * time.Second
	// copyTimeout bounds the wait for an unresponsive disk. The copy then fails.
	copyTimeout = 5 * time.Minute
)

// makeCopy holds the source open exclusively from before the first effect to the end: a file
// system in use would be copied as garbage, and freezing it for so long would stop its Pod. The
// kernel still lets others open and write a raw volume; the copy then fails, see unchanged.
// After a restart of lvmd the copy resumes if the kernel counted no write since; otherwise it
// is undone.
func (s *creator) makeCopy(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	if err := s.openSource(ctx, from); err != nil {
		v.UndoCreation(false)
		return err
	}
	defer func() { _ = from.Handle.Close() }()
	return s.make(ctx, v, from)
}

func (s *creator) openSource(ctx context.Context, from *inventory.Source) (err error) {
	from.Handle, err = s.groups.Open(ctx, from.Volume)
	if errors.Is(err, lvm.ErrBusy) {
		return apierror.VolumeInUse(from.Volume.ID(), err)
	}
	if err != nil {
		return fmt.Errorf("opening the source, volume %s: %w", from.Volume.ID(), err)
	}
	return nil
}

// resume continues a copy of a previous process run, whose volume exists.
func (s *creator) resume(a inventory.Admission) {
	s.begin(a, func(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
		err := s.openSource(ctx, from)
		if err == nil {
			defer func() { _ = from.Handle.Close() }()
			err = s.finish(ctx, v, from)
		}
		return s.ended(v, err)
	})
}

func (s *creator) copyFrom(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	place, release, err := s.copying.Take(ctx, v.Group().Name(), volumegroup.Disks(s.lvm, v, from.Volume))
	if err != nil {
		return err
	}
	defer release()
	to, err := s.groups.Open(ctx, v)
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	c := &copyRun{
		creator: s, v: v, limit: from.Limit, to: s.bound(to, v, place),
		source: from.Volume.ID(), from: s.bound(from.Handle, from.Volume, place),
		since: from.Since, recorded: from.Copied, recordedAt: time.Now(), reported: time.Now(),
	}
	err = c.run(ctx)
	if err = errors.Join(err, to.Close()); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return apierror.NoSpace("copying volume %s: %v", c.source, err)
		}
		if errors.Is(err, blockdev.ErrNotCounted) {
			return apierror.WritesNotCounted(c.source, err)
		}
		return fmt.Errorf("copying volume %s: %w", c.source, err)
	}
	s.crash("clone: copied")
	return nil
}

// bound gives up operations on an unresponsive device after a timeout, and releases the copy's
// place while they wait.
func (s *creator) bound(h blockdev.Handle, of *inventory.Volume, place *command.Place) blockdev.Handle {
	return blockdev.Bound(h, blockdev.Bounds{
		Guard: &s.answering, Device: "the device of volume " + of.ID(), Timeout: s.copyTimeout, Look: s.copyLook, Waiting: place.Waiting,
	})
}

type copyRun struct {
	*creator
	v        *inventory.Volume
	source   string
	from, to blockdev.Handle
	// nil means no limit.
	limit *rate.Limiter
	since blockdev.WriteMark
	// recorded counts the durable bytes in the journal, last updated at recordedAt.
	recorded   int64
	recordedAt time.Time
	reported   time.Time
}

func (c *copyRun) run(ctx context.Context) error {
	if err := c.start(); err != nil {
		return err
	}
	if err := c.copyChunks(ctx); err != nil {
		return err
	}
	if err := c.unchanged(); err != nil {
		return err
	}
	// Zero the part beyond the source's size.
	notZeroed, all := c.v.NotZeroed()
	if !all {
		notZeroed = endsOf(notZeroed, headAndTail, c.to.Size())
	}
	if err := c.zero(ctx, c.to, notZeroed.Minus(zeroed.Span{From: 0, To: c.from.Size()}), nil); err != nil {
		return err
	}
	return c.to.Sync()
}

func (c *copyRun) start() error {
	if c.recorded > 0 {
		return c.unchanged()
	}
	err := c.from.CountWrites()
	if err == nil {
		c.since, err = c.written()
	}
	return err
}

// written flushes the source first: dirty pages in its page cache would be written, and
// counted, while the copy reads past them.
func (c *copyRun) written() (blockdev.WriteMark, error) {
	if err := c.from.Sync(); err != nil {
		return blockdev.WriteMark{}, err
	}
	return c.from.Written()
}

// unchanged fails if the source was written to since its copy began: the copy would not show
// one point in time.
func (c *copyRun) unchanged() error {
	now, err := c.written()
	if err == nil && now != c.since {
		err = apierror.VolumeWritten(c.source)
	}
	return err
}

func (c *copyRun) copyChunks(ctx context.Context) error {
	c.from.Uncached()
	c.to.Uncached()
	size := c.from.Size()
	buffer := make([]byte, copyChunk)
	for off := c.recorded; off < size; off += copyChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := buffer[:min(copyChunk, size-off)]
		if err := waitFor(ctx, c.limit, len(chunk)); err != nil {
			return err
		}
		if _, err := c.from.ReadAt(chunk, off); err != nil {
			return fmt.Errorf("reading at byte %d: %w", off, err)
		}
		if err := writeChunk(c.to, chunk, off, c.v.IsThin()); err != nil {
			return fmt.Errorf("writing at byte %d: %w", off, err)
		}
		c.crash("clone: chunk copied")
		if err := c.copied(off + int64(len(chunk))); err != nil {
			return err
		}
	}
	return nil
}

func (c *copyRun) copied(bytes int64) error {
	p := inventory.Progress{Copied: bytes, Since: c.since, Publish: time.Since(c.reported) > copyReport}
	if p.Publish {
		c.reported = time.Now()
	}
	if bytes-c.recorded >= c.copyCheckpoint || time.Since(c.recordedAt) >= copyInterval {
		if err := errors.Join(c.to.Sync(), c.unchanged()); err != nil {
			return err
		}
		c.recorded, c.recordedAt = bytes, time.Now()
		p.Durable = c.since.Lasts()
	}
	rec := c.v.NoteProgress(p)
	if !p.Durable {
		return nil
	}
	defer c.crash("clone: progress recorded")
	return c.journal.PutVolume(rec)
}

// waitFor takes bytes from limit in steps of its burst, as WaitN rejects more; nil means no
// limit.
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

// writeChunk skips blocks of zeroes if the target is zeroed.
func writeChunk(to blockdev.Handle, chunk []byte, off int64, zeroed bool) error {
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

var zeroBlock [copyBlock]byte

func allZero(block []byte) bool { return bytes.Equal(block, zeroBlock[:len(block)]) }
