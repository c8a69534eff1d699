package lvmfake

import (
	"context"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/carve-csi/carve/pkg/lvm"
)

// major is the device major number of all fake devices.
const major = 253

// blockSize is the granularity in which the fake remembers what was written.
const blockSize = 4096

func (v *volume) opens() int {
	n := v.mounts
	if v.handle != nil {
		n++
	}
	if v.cipher != nil {
		n++
	}
	return n
}

// Tear makes a device, of a volume or of a part of one, what a command leaves that
// is killed while it changes it: until it is mended, the volume is longer than it
// should be, and all of its I/O fails.
func (f *Groups) Tear(groupName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[groupName]
	g.torn = append(g.torn, device)
}

// Torn implements lvm.Groups.
func (f *Groups) Torn(groupName string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.groups[groupName]; g != nil {
		return slices.Clone(g.torn), nil
	}
	return nil, nil
}

// Mend implements lvm.Groups.
func (f *Groups) Mend(ctx context.Context, groupName string, volumes []string) error {
	if err := f.begin(ctx, OpMend, groupName); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[groupName]
	if g == nil {
		return nil
	}
	g.torn = slices.DeleteFunc(g.torn, func(device string) bool {
		return slices.ContainsFunc(volumes, func(v string) bool { return lvm.IsOf(device, v) })
	})
	return nil
}

func (h *handle) torn() bool {
	return slices.ContainsFunc(h.group.torn, func(device string) bool { return lvm.IsOf(device, h.name) })
}

// works fails for a volume that is torn.
func (h *handle) works() error {
	if h.torn() {
		return fmt.Errorf("%s/%s: %w", h.groupName, h.name, syscall.EIO)
	}
	return nil
}

// Device implements lvm.Groups.
func (f *Groups) Device(groupName, name string) (lvm.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, v, err := f.active(groupName, name)
	if err != nil {
		return lvm.Device{}, err
	}
	return lvm.Device{
		Path: "/dev/" + groupName + "/" + name, Major: major, Minor: v.minor, OpenCount: v.opens(),
	}, nil
}

// Numbers implements lvm.Groups.
func (f *Groups) Numbers(groupName string) (lvm.Numbers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := lvm.Numbers{Volumes: map[string]lvm.Number{}, Encrypted: map[string]lvm.Number{}}
	for of, g := range f.groups {
		for name, v := range g.volumes {
			if v.minor != 0 && of == groupName {
				n.Volumes[name] = lvm.Number{Major: major, Minor: v.minor}
			}
			if v.cipher != nil {
				n.Encrypted[name] = lvm.Number{Major: major, Minor: v.cipher.minor}
			}
		}
	}
	return n, nil
}

// Renumber takes the device of a volume away, as an administrator does by lvchange,
// or makes it, with another number than it had. Nothing is written to the disks.
func (f *Groups) Renumber(groupName, name string, active bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.groups[groupName].volumes[name]
	v.minor = 0
	if active {
		f.minor++
		v.minor = f.minor
	}
}

// Open implements lvm.Groups.
func (f *Groups) Open(groupName, name string) (lvm.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, err
	}
	if v.mounts > 0 || v.cipher != nil {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrClaimed)
	}
	if v.handle != nil {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrBusy)
	}
	v.handle = &handle{fake: f, group: g, volume: v, groupName: groupName, name: name}
	return v.handle, nil
}

// Mount counts one more opener of a volume, or of its encrypted device, as a
// mount does.
func (f *Groups) Mount(groupName, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, v, err := f.active(groupName, name)
	if err != nil {
		return err
	}
	switch c := v.cipher; {
	case v.handle != nil, c != nil && c.handle != nil:
		return fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrBusy)
	case c != nil:
		c.mounts++
		return nil
	}
	v.mounts++
	return nil
}

// Unmount takes back one Mount.
func (f *Groups) Unmount(groupName, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, v, err := f.active(groupName, name); err == nil && v.mounts > 0 {
		v.mounts--
	} else if err == nil && v.cipher != nil && v.cipher.mounts > 0 {
		v.cipher.mounts--
	}
}

// CloseAll drops the handles of a user that crashed.
func (f *Groups) CloseAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.groups {
		for _, v := range g.volumes {
			v.handle = nil
			if v.cipher != nil {
				v.cipher.handle = nil
			}
		}
	}
}

// Fill writes the pattern, not zero, over the whole volume, as its tenant does:
// through its encrypted device, if it has one.
func (f *Groups) Fill(groupName, name string, pattern byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return err
	}
	size, write := g.size(v), func(off int64) error { return g.write(v, off, pattern) }
	if c := v.cipher; c != nil {
		size, write = c.bytes, func(off int64) error { return c.write(g, v, off, pattern) }
	}
	v.written++
	for off := int64(0); off < size; off += blockSize {
		if err := write(off); err != nil {
			return fmt.Errorf("%s/%s: %w", groupName, name, err)
		}
	}
	return nil
}

// Traces counts the blocks of a volume that show something other than zeroes,
// and returns one of the patterns. Of a volume with an encrypted device, it
// counts what was written through that.
func (f *Groups) Traces(groupName, name string) (blocks int, pattern byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return 0, 0, err
	}
	if v.cipher != nil {
		for _, p := range v.cipher.plain {
			if p != 0 {
				blocks, pattern = blocks+1, p
			}
		}
		return blocks, pattern, nil
	}
	for off := int64(0); off < g.size(v); off += blockSize {
		if p := g.read(v, off); p != 0 {
			blocks, pattern = blocks+1, p
		}
	}
	return blocks, pattern, nil
}

// active finds a volume that has a device. The caller holds f.mu.
func (f *Groups) active(groupName, name string) (*group, *volume, error) {
	g := f.groups[groupName]
	if g == nil || g.volumes[name] == nil || g.volumes[name].minor == 0 {
		return nil, nil, fmt.Errorf("device %s/%s: %w", groupName, name, lvm.ErrNotFound)
	}
	return g, g.volumes[name], nil
}

// block is the physical block behind an offset of a volume.
func (g *group) block(v *volume, off int64) int64 {
	return (v.extents[off/g.extentSize]*g.extentSize + off%g.extentSize) / blockSize
}

type handle struct {
	fake            *Groups
	group           *group
	volume          *volume
	groupName, name string
	// cipher is set when the encrypted device is what is open.
	cipher *cipher
	// shared handles are open beside others.
	shared bool
}

func (h *handle) Size() int64 {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	return h.size()
}

func (h *handle) size() int64 {
	if h.cipher != nil {
		return h.cipher.bytes
	}
	if h.torn() {
		return h.group.size(h.volume) + h.group.extentSize
	}
	return h.group.size(h.volume)
}

func (h *handle) write(off int64, pattern byte) error {
	h.volume.written++
	if h.cipher != nil {
		return h.cipher.write(h.group, h.volume, off, pattern)
	}
	return h.group.write(h.volume, off, pattern)
}

func (h *handle) read(off int64) byte {
	if h.cipher != nil {
		return h.cipher.read(off)
	}
	return h.group.read(h.volume, off)
}

// closed tells whether the device was given up, or taken away.
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
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	return h.clear(off, length, true)
}

// clear does what the device does to a range. The caller holds the fake's lock.
func (h *handle) clear(off, length int64, zeroes bool) error {
	if h.closed() {
		return fmt.Errorf("%s/%s: handle is closed", h.groupName, h.name)
	}
	if err := h.works(); err != nil {
		return err
	}
	for o := off; zeroes && o < off+length; o += blockSize {
		if err := h.write(o, 0); err != nil {
			return fmt.Errorf("%s/%s: %w", h.groupName, h.name, err)
		}
	}
	return nil
}

func (h *handle) Overwrite(off, length int64) error { return h.Zero(off, length) }

// Discard zeroes, or leaves what is there: devices do either. A thin volume gives whole chunks
// back to its pool.
func (h *handle) Discard(off, length int64) error {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if h.volume.thin != nil && h.cipher == nil {
		if err := h.clear(off, length, false); err != nil {
			return err
		}
		h.volume.thin.unmap(off, length)
		return nil
	}
	return h.clear(off, length, h.fake.DiscardZeroes)
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
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
		if p := h.read(at / blockSize * blockSize); p != 0 {
			for j := i; j < end; j++ {
				b[j] = p
			}
		}
		i = end
	}
	return len(b), nil
}

// WriteAt keeps the first byte of each block: the fake remembers no more.
func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	if err := h.works(); err != nil {
		return 0, err
	}
	for i := 0; i < len(b); i += blockSize {
		if off+int64(i) >= h.size() {
			return i, io.ErrShortWrite
		}
		if err := h.write(off+int64(i), b[i]); err != nil {
			return i, fmt.Errorf("%s/%s: %w", h.groupName, h.name, err)
		}
	}
	return len(b), nil
}

// Uncached implements lvm.Handle: the fake has no page cache.
func (h *handle) Uncached() {}

// Written implements lvm.Handle, in blocks.
func (h *handle) Written() (uint64, error) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	return h.volume.written, nil
}

func (h *handle) Sync() error { return nil }

func (h *handle) Close() error {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	switch {
	case h.cipher != nil && h.cipher.handle == h:
		h.cipher.handle = nil
	case h.volume.handle == h:
		h.volume.handle = nil
	}
	return nil
}
