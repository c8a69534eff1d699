package lvmd

import (
	"context"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/lvmd/zeroed"
)

// headAndTail is how much is zeroed at both ends of a new volume, so that no
// signature of an earlier use of the disk is found in it. LVM's own metadata,
// partition tables and all file systems' first superblocks lie within.
const headAndTail = 1 << 20

// endsOf is a set without what lies between the ends of a volume of so many bytes, of which the
// first has so many.
func endsOf(s zeroed.Set, head, size int64) zeroed.Set {
	if size <= head+headAndTail {
		return s
	}
	return s.Minus(zeroed.Span{From: head, To: size - headAndTail})
}

// clearNew makes a new volume fit to be handed out: what is not known to hold
// zeroes is cleared, all of a raw volume, the ends of one with a file
// system.
func (c *core) clearNew(ctx context.Context, v *inventory.Volume, h blockdev.Handle) error {
	size := h.Size()
	notZeroed, all := v.NotZeroed()
	if !all {
		notZeroed = endsOf(notZeroed, max(headAndTail, v.Ident().HeaderBytes()), size)
	}
	return c.zero(ctx, h, notZeroed)
}

// zero makes stretches of a volume read as zeroes, durably.
func (c *core) zero(ctx context.Context, h blockdev.Handle, stretches zeroed.Set) error {
	for _, e := range stretches {
		for off := e.From; off < e.To; off += reclaim.WipeChunk {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(reclaim.WipeChunk, e.To-off)
			if err := h.Zero(off, n); err != nil {
				return err
			}
		}
	}
	if len(stretches) == 0 {
		return nil
	}
	return h.Sync()
}
