package lvmfake

import (
	"fmt"
	"slices"

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
	devices := g.devices(groupName)
	if v.layout().IsRAID() {
		// Where what lies is up to the kernel: only what is taken is known.
		p := lvm.Piece{Length: int64(len(v.extents)) * g.extentSize}
		for _, e := range v.all() {
			p.Areas = append(p.Areas, g.area(devices, e))
		}
		return []lvm.Piece{p}, nil
	}
	pieces := make([]lvm.Piece, len(v.extents))
	for i := range v.extents {
		at := int64(i) * g.extentSize
		pieces[i] = lvm.Piece{Offset: at, Length: g.extentSize, Verbatim: true, Areas: []lvm.Area{
			g.area(devices, g.block(v, at)*blockSize/g.extentSize),
		}}
	}
	return pieces, nil
}

// area is where one of the group's extents lies.
func (g *group) area(devices []device, extent int64) lvm.Area {
	for _, d := range devices {
		if i := slices.Index(d.members, extent); i >= 0 {
			return lvm.Area{Device: d.uuid, Start: d.dataOffset + int64(i)*g.extentSize, Length: g.extentSize}
		}
	}
	panic(fmt.Sprintf("extent %d is on no device of its group", extent))
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
