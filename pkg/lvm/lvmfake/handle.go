package lvmfake

import (
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

func (h *handle) isInconsistent() bool {
	return slices.ContainsFunc(h.group.inconsistent, func(device string) bool { return layout.IsOf(device, h.name) })
}

func (h *handle) works() error {
	if h.isInconsistent() {
		return fmt.Errorf("%s/%s: %w", h.groupName, h.name, syscall.EIO)
	}
	return nil
}

type handle struct {
	fake            *machine
	group           *group
	volume          *volume
	groupName, name string
	// cipher is set if the encrypted device is open.
	cipher *cipher
	shared bool
}

func (h *handle) Size() int64 {
	defer h.fake.lock()()
	return h.size()
}

func (h *handle) size() int64 {
	if h.cipher != nil {
		return h.cipher.bytes
	}
	if h.isInconsistent() {
		return h.group.size(h.volume) + h.group.extentSize
	}
	return h.group.size(h.volume)
}

func (h *handle) write(first, n int64, pattern byte) error {
	h.volume.written += uint64(n)
	h.volume.overwrite()
	if h.cipher != nil {
		return h.cipher.write(h.group, h.volume, first, n, pattern)
	}
	return h.group.write(h.volume, first, n, pattern)
}

func (h *handle) read(block int64) byte {
	if h.cipher != nil {
		return h.cipher.read(block)
	}
	return h.group.read(h.volume, block)
}

func (h *handle) closed() bool {
	if h.cipher != nil {
		return h.volume.cipher != h.cipher || h.cipher.handle != h
	}
	return h.volume.handle != h && !h.shared
}

func (h *handle) Zero(off, length int64) error {
	if h.fake.BeforeZero != nil {
		if err := h.fake.BeforeZero(h.groupName, h.name, off, length); err != nil {
			return err
		}
	}
	defer h.fake.lock()()
	return h.clear(off, length, true)
}

// clear zeroes a range, or only checks the handle. The caller holds the machine's lock.
func (h *handle) clear(off, length int64, zeroes bool) error {
	if h.closed() {
		return fmt.Errorf("%s/%s: handle is closed", h.groupName, h.name)
	}
	if err := h.works(); err != nil {
		return err
	}
	if !zeroes || length <= 0 {
		return nil
	}
	if err := h.write(off/blockSize, blocks(length), 0); err != nil {
		return fmt.Errorf("%s/%s: %w", h.groupName, h.name, err)
	}
	return nil
}

func (h *handle) Overwrite(off, length int64) error { return h.Zero(off, length) }

// Discard does either that devices do: zeroes the range, or leaves it. A thin volume releases
// whole chunks.
func (h *handle) Discard(off, length int64) error {
	defer h.fake.lock()()
	if h.volume.thin != nil && h.cipher == nil {
		if err := h.clear(off, length, false); err != nil {
			return err
		}
		h.volume.thin.unmap(off, length)
		h.volume.overwrite()
		return nil
	}
	return h.clear(off, length, h.fake.DiscardZeroes)
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	defer h.fake.lock()()
	if err := h.works(); err != nil {
		return 0, err
	}
	clear(b)
	for i := 0; i < len(b); {
		at := off + int64(i)
		if at >= h.size() {
			return i, io.EOF
		}
		end := min(len(b), i+int(blockSize-at%blockSize))
		if p := h.read(at / blockSize); p != 0 {
			fill(b[i:end], p)
		}
		i = end
	}
	return len(b), nil
}

// WriteAt keeps only the first byte of each block.
func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	defer h.fake.lock()()
	if err := h.works(); err != nil {
		return 0, err
	}
	for i := 0; i < len(b); i += blockSize {
		if off+int64(i) >= h.size() {
			return i, io.ErrShortWrite
		}
		if err := h.write((off+int64(i))/blockSize, 1, b[i]); err != nil {
			return i, fmt.Errorf("%s/%s: %w", h.groupName, h.name, err)
		}
	}
	return len(b), nil
}

// Uncached does nothing: the fake has no page cache.
func (h *handle) Uncached() {}

// Written counts blocks.
func (h *handle) Written() (blockdev.WriteMark, error) {
	defer h.fake.lock()()
	if h.fake.NotCounted.Load() {
		return blockdev.WriteMark{}, blockdev.ErrNotCounted
	}
	mark := blockdev.WriteMark{Boot: "fake", Sectors: h.volume.written}
	if !h.fake.OldKernel {
		mark.Sequence = uint64(h.volume.minor) // Minors are never reused.
	}
	return mark, nil
}

func (h *handle) CountWrites() error {
	if h.fake.NeverCounted.Load() {
		return blockdev.ErrNotCounted
	}
	h.fake.NotCounted.Store(false)
	return nil
}

func (h *handle) Sync() error { return nil }

func (h *handle) Close() error {
	defer h.fake.lock()()
	switch {
	case h.cipher != nil && h.cipher.handle == h:
		h.cipher.handle = nil
	case h.volume.handle == h:
		h.volume.handle = nil
	}
	return nil
}
