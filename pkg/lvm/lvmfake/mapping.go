package lvmfake

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
)

// Mapping implements lvm.Groups: one piece per extent.
func (f *Groups) Mapping(groupName, name string) ([]lvm.Piece, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, err
	}
	if v.layout().IsRAID() {
		// Where what lies is up to the kernel: only what is taken is known.
		p := lvm.Piece{Length: int64(len(v.extents)) * g.extentSize}
		for _, e := range v.all() {
			p.Areas = append(p.Areas, lvm.Area{Device: g.uuid, Start: g.dataOffset + e*g.extentSize, Length: g.extentSize})
		}
		return []lvm.Piece{p}, nil
	}
	pieces := make([]lvm.Piece, len(v.extents))
	for i := range v.extents {
		at := int64(i) * g.extentSize
		pieces[i] = lvm.Piece{Offset: at, Length: g.extentSize, Verbatim: true, Areas: []lvm.Area{{
			Device: g.uuid, Start: g.dataOffset + g.block(v, at)*blockSize, Length: g.extentSize,
		}}}
	}
	return pieces, nil
}

// OpenInUse implements lvm.Groups.
func (f *Groups) OpenInUse(groupName, name string) (lvm.Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, err)
	}
	return &handle{fake: f, group: g, volume: v, groupName: groupName, name: name, shared: true}, nil
}
