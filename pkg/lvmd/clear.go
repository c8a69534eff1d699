package lvmd

import (
	"context"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// headAndTail is zeroed at both ends of a new volume so that no old signature is found. It
// covers LVM's metadata, partition tables and the first superblock of every file system.
const headAndTail = 1 << 20

// endsOf keeps the parts of s within the first head or the last headAndTail bytes of a volume
// of the given size.
func endsOf(s zeroed.Set, head, size int64) zeroed.Set {
	if size <= head+headAndTail {
		return s
	}
	return s.Minus(zeroed.Span{From: head, To: size - headAndTail})
}

// clearNew zeroes what may hold old data: all of it in a raw volume, the ends in one with a
// file system.
func (c *core) clearNew(ctx context.Context, v *inventory.Volume, h blockdev.Handle) error {
	size := h.Size()
	notZeroed, all := v.NotZeroed()
	if !all {
		notZeroed = endsOf(notZeroed, max(headAndTail, v.Ident().HeaderBytes()), size)
	}
	return c.zero(ctx, h, notZeroed, v.NoteCleared)
}

// zero returns once the zeroes are durable. It calls progress, which may be nil, with the end of
// each part.
func (c *core) zero(ctx context.Context, h blockdev.Handle, stretches zeroed.Set, progress func(to int64)) error {
	for _, e := range stretches {
		for off := e.From; off < e.To; off += reclaim.WipeChunk {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(reclaim.WipeChunk, e.To-off)
			if err := h.Zero(off, n); err != nil {
				return err
			}
			if progress != nil {
				progress(off + n)
			}
		}
	}
	if len(stretches) == 0 {
		return nil
	}
	return h.Sync()
}
