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
	// copyChunk is copied at a time.
	copyChunk = 4 << 20
	// copyBlock is the unit in which zeroes are left out where they need not be
	// written.
	copyBlock = 64 << 10
	// copyCheckpoint and copyInterval are how much is copied, and how long it may take,
	// between two records of progress. Before each, what was copied is flushed.
	copyCheckpoint = 256 << 20
	copyInterval   = 5 * time.Second
	// copyReport is how often watchers are notified of a copy's progress.
	copyReport = time.Second
	// maxCopying bounds how many copies run at once in a volume group, maxCopies those with the ones
	// that wait for a disk, each with a chunk in memory, and maxSameCopies these on the same disks. One that
	// has waited for copyLook counts as such.
	maxCopying    = 2
	maxCopies     = 16
	maxSameCopies = 8
	copyLook      = 10 * time.Second
	// copyTimeout bounds how long a copy waits for a disk that does not answer. It fails then.
	copyTimeout = 5 * time.Minute
)

// makeCopy makes a volume that its source is copied to. The source is held
// open for lvmd alone, from before the first effect to the end: a file system that is written to
// would be copied as garbage, and one that is frozen for so long stops its Pod. It cannot be
// mounted, and what is copied is what it holds all the time. The kernel lets
// others open a raw volume all the same, and write to it; then the copy fails,
// see unchanged. A copy that a restart of lvmd interrupts goes on after it if the
// kernel says that nothing was written to the source meanwhile; else it is undone.
func (s *creator) makeCopy(ctx context.Context, v *inventory.Volume, from *inventory.Source) error {
	if err := s.openSource(ctx, from); err != nil {
		v.UndoCreation(false)
		return err
	}
	defer func() { _ = from.Handle.Close() }()
	return s.make(ctx, v, from)
}

// openSource opens the source of a copy.
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

// resume continues a copy that a previous run of lvmd left, after LVM has made the volume.
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

// copyFrom copies the source to a volume that LVM has made, durably.
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

// bound gives up operations of a copy on the device of a volume that does not answer, and the
// copy's place while it waits for that.
func (s *creator) bound(h blockdev.Handle, of *inventory.Volume, place *command.Place) blockdev.Handle {
	return blockdev.Bound(h, blockdev.Bounds{
		Guard: &s.answering, Device: "the device of volume " + of.ID(), Timeout: s.copyTimeout, Look: s.copyLook, Waiting: place.Waiting,
	})
}

// copyRun copies a source to a volume, from the last record of progress on.
type copyRun struct {
	*creator
	v *inventory.Volume
	// source is the id of the volume that is read from.
	source   string
	from, to blockdev.Handle
	// limit limits the rate; nil is no limit.
	limit *rate.Limiter
	// since is how much was written to the source when its copy began.
	since blockdev.WriteMark
	// recorded counts the bytes that are copied durably, as the journal says, and recordedAt since when.
	recorded   int64
	recordedAt time.Time
	// reported is when watchers were last notified.
	reported time.Time
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
	// What the volume has more than its source.
	notZeroed, all := c.v.NotZeroed()
	if !all {
		notZeroed = endsOf(notZeroed, headAndTail, c.to.Size())
	}
	if err := c.zero(ctx, c.to, notZeroed.Minus(zeroed.Span{From: 0, To: c.from.Size()})); err != nil {
		return err
	}
	return c.to.Sync()
}

// start has the kernel count what is written to the source, and notes how much that was so far,
// or, of a copy that goes on, checks that nothing was written since it began.
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

// written marks what was written to the source. What is read and was written before is not
// in the page cache alone: reading past that writes it, and then it counts.
func (c *copyRun) written() (blockdev.WriteMark, error) {
	if err := c.from.Sync(); err != nil {
		return blockdev.WriteMark{}, err
	}
	return c.from.Written()
}

// unchanged fails when something was written to the source since its copy began: the copy
// would be of no point in time.
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

// copied reports how much is copied, and from time to time makes it durable.
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

// zeroBlock is what a block of zeroes is compared with.
var zeroBlock [copyBlock]byte

// allZero reports whether a block, of copyBlock bytes at most, has nothing but zeroes.
func allZero(block []byte) bool { return bytes.Equal(block, zeroBlock[:len(block)]) }
