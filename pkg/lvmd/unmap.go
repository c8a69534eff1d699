package lvmd

import (
	"errors"

	"github.com/carve-csi/carve/pkg/lvm"
)

// unmapChunkBytes is how much of a thin volume is given back to its pool at a time: a
// multiple of every chunk size, and what the kernel unmaps within a moment.
const unmapChunkBytes = 1 << 30

// unmapChunk is wipeChunk for thin volumes and snapshots. It gives the next chunk of the volume
// back to its pool, outside the group's exclusive slot: a command that removes a large volume
// that is mapped takes longer than a command may, and holds up all classes of its group. There is
// nothing to wipe: a pool zeroes what it gives to a volume.
//
// A snapshot has no device, and is removed as it is. So is a volume that cannot be unmapped: LVM
// says why, if the removal fails, too.
func (s *Service) unmapChunk(v *volume, h lvm.Handle, off int64) error {
	if h == nil {
		var err error
		if h, err = s.lvm.Open(v.group.name, v.rec.ID); errors.Is(err, lvm.ErrBusy) {
			return err
		}
		if err != nil {
			return s.skipWipe(v, nil)
		}
	}
	n := min(int64(unmapChunkBytes), h.Size()-off)
	err := h.Discard(off, n)
	if err != nil {
		s.log.Warn("a deleted thin volume is removed with what it holds", "volume", v.rec.ID, "error", err)
	}
	s.crash("delete: chunk unmapped")
	s.model.mu.Lock()
	v.handle, v.rec.Wiped, v.failures = h, off+n, 0
	s.model.mu.Unlock()
	if err != nil || off+n >= h.Size() {
		return s.skipWipe(v, h)
	}
	return nil
}
