package lvmfake

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
)

// Mount adds a mount as an opener of a volume, or of its encrypted device.
func (f tenants) Mount(groupName, name string) error {
	defer f.lock()()
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

func (f tenants) Unmount(groupName, name string) {
	defer f.lock()()
	if _, v, err := f.active(groupName, name); err == nil && v.mounts > 0 {
		v.mounts--
	} else if err == nil && v.cipher != nil && v.cipher.mounts > 0 {
		v.cipher.mounts--
	}
}

// CloseAll drops all handles, like a crash of their user.
func (f tenants) CloseAll() {
	defer f.lock()()
	for _, g := range f.groups {
		for _, v := range g.volumes {
			v.handle = nil
			if v.cipher != nil {
				v.cipher.handle = nil
			}
		}
	}
}

// Fill writes a nonzero pattern over the whole volume, through its encrypted device if it has
// one.
func (f tenants) Fill(groupName, name string, pattern byte) error {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return err
	}
	v.written++
	if c := v.cipher; c != nil {
		err = c.write(g, v, 0, blocks(c.bytes), pattern)
	} else {
		err = g.write(v, 0, blocks(g.size(v)), pattern)
	}
	if err != nil {
		return fmt.Errorf("%s/%s: %w", groupName, name, err)
	}
	return nil
}

// Traces counts the nonzero blocks of a volume, and returns one of their patterns. For an
// encrypted volume it counts what was written through the encrypted device.
func (f tenants) Traces(groupName, name string) (found int, pattern byte, err error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return 0, 0, err
	}
	if v.cipher != nil {
		found, pattern = v.cipher.plain.count(0, blocks(v.cipher.bytes))
	} else {
		found, pattern = g.count(v)
	}
	return found, pattern, nil
}

func (f tenants) Discards(name string) bool {
	defer f.lock()()
	_, _, v, err := f.encrypted(name)
	return err == nil && v.cipher.discards
}

// Noise counts the blocks of a volume's own device that were last written through a cipher.
func (f tenants) Noise(groupName, name string) (found int) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil || v.thin != nil {
		return 0
	}
	for _, e := range v.extents {
		more, _ := g.noise.count(e*g.extentSize/blockSize, g.extentSize/blockSize)
		found += more
	}
	return found
}
