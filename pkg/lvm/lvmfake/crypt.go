package lvmfake

import (
	"fmt"
	"slices"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
)

// noise is the pattern of blocks written through a cipher as the volume below shows them, and
// of other blocks as the cipher shows them.
const noise = 0xc1

// cipher is an encrypted device. Its contents end with it.
type cipher struct {
	minor    uint32
	bytes    int64
	discards bool
	mounts   int
	handle   *handle
	// written is nonzero for written blocks.
	plain, written store
}

func (c *cipher) opens() int {
	if c.handle != nil {
		return c.mounts + 1
	}
	return c.mounts
}

// encrypted returns a volume that has an encrypted device. The caller holds the machine's lock.
func (f *machine) encrypted(name string) (string, *group, *volume, error) {
	for groupName, g := range f.groups {
		if v := g.volumes[name]; v != nil && v.cipher != nil {
			return groupName, g, v, nil
		}
	}
	return "", nil, nil, fmt.Errorf("encrypted device of %s: %w", name, lvm.ErrNotFound)
}

func (f encryption) Encrypt(groupName, name string, o lvm.CryptOptions) (fresh bool, err error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	switch {
	case err != nil:
		return false, err
	case v.cipher != nil:
		return false, nil
	case v.opens() > 0:
		return false, fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrBusy)
	}
	f.minor++
	v.cipher = &cipher{minor: f.minor, bytes: g.size(v), discards: o.Discards, plain: store{}, written: store{}}
	return true, nil
}

func (f encryption) GrowCrypt(groupName, name string) error {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	switch {
	case err != nil:
		return err
	case v.cipher == nil:
		return fmt.Errorf("encrypted device of %s: %w", name, lvm.ErrNotFound)
	}
	v.cipher.bytes = g.size(v)
	return nil
}

func (f encryption) ForgetKey(name string) error {
	defer f.lock()()
	_, _, v, err := f.encrypted(name)
	switch {
	case err != nil:
		return nil
	case v.cipher.opens() > 0:
		return fmt.Errorf("encrypted device of %s: %w", name, lvm.ErrBusy)
	}
	v.cipher = nil
	return nil
}

func (f encryption) CryptDevice(name string) (lvm.Device, error) {
	defer f.lock()()
	_, _, v, err := f.encrypted(name)
	if err != nil {
		return lvm.Device{}, err
	}
	return lvm.Device{Path: "/dev/mapper/carve.crypt." + name, Major: major, Minor: v.cipher.minor, OpenCount: v.cipher.opens()}, nil
}

func (f encryption) OpenCrypt(name string) (blockdev.Handle, error) {
	defer f.lock()()
	groupName, g, v, err := f.encrypted(name)
	switch {
	case err != nil:
		return nil, err
	case v.cipher.mounts > 0:
		return nil, fmt.Errorf("encrypted device of %s: %w", name, lvm.ErrClaimed)
	case v.cipher.handle != nil:
		return nil, fmt.Errorf("encrypted device of %s: %w", name, lvm.ErrBusy)
	}
	v.cipher.handle = &handle{fake: f.machine, group: g, volume: v, cipher: v.cipher, groupName: groupName, name: name}
	return v.cipher.handle, nil
}

func (f encryption) Encrypted() ([]string, error) {
	defer f.lock()()
	var names []string
	for _, g := range f.groups {
		for name, v := range g.volumes {
			if v.cipher != nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

func (c *cipher) write(g *group, v *volume, first, n int64, pattern byte) error {
	if err := g.write(v, first, n, noise); err != nil {
		return err
	}
	if v.thin == nil {
		for at, some := range runs(first, n, g.extentSize/blockSize) {
			g.noise.put(g.block(v, at*blockSize), some, 1)
		}
	}
	c.plain.put(first, n, pattern)
	c.written.put(first, n, 1)
	return nil
}

func (c *cipher) read(block int64) byte {
	if c.written.get(block) != 0 {
		return c.plain.get(block)
	}
	return noise
}
