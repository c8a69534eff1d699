package lvmfake

import (
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
)

// Move moves a linear volume to other extents with what it holds, as an administrator does
// with pvmove(8). It fails where too few extents are free.
func (f *Groups) Move(groupName, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("pvmove", groupName)
	if err != nil {
		return err
	}
	v := g.volumes[name]
	if v == nil || v.shape != nil || v.pool != nil || v.thin != nil {
		return fmt.Errorf("pvmove: %s/%s: %w, or not linear", groupName, name, lvm.ErrNotFound)
	}
	var to []int64
	for e := range g.extents {
		if g.free[e] && len(to) < len(v.extents) {
			to = append(to, e)
		}
	}
	if len(to) < len(v.extents) {
		return errors.New("pvmove: too few extents are free")
	}
	blocks := g.extentSize / blockSize
	for i, from := range v.extents {
		for b := range blocks {
			if pattern, dirty := g.dirty[from*blocks+b]; dirty {
				g.dirty[to[i]*blocks+b] = pattern
			} else {
				delete(g.dirty, to[i]*blocks+b)
			}
		}
		g.free[to[i]] = false
	}
	g.give(v.extents)
	v.extents = to
	g.seqno++
	return nil
}
