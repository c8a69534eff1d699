package lvmfake

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
)

func (f inspection) Device(groupName, name string) (lvm.Device, error) {
	defer f.lock()()
	_, v, err := f.active(groupName, name)
	if err != nil {
		return lvm.Device{}, err
	}
	return lvm.Device{
		Path: "/dev/" + groupName + "/" + name, Major: major, Minor: v.minor, OpenCount: v.opens(),
	}, nil
}

func (f inspection) Numbers(groupName string) (lvm.Numbers, error) {
	defer f.lock()()
	n := lvm.Numbers{Volumes: map[string]blockdev.Number{}, Encrypted: map[string]blockdev.Number{}}
	for of, g := range f.groups {
		for name, v := range g.volumes {
			if v.minor != 0 && of == groupName {
				n.Volumes[name] = blockdev.Number{Major: major, Minor: v.minor}
			}
			if v.cipher != nil {
				n.Encrypted[name] = blockdev.Number{Major: major, Minor: v.cipher.minor}
			}
		}
	}
	return n, nil
}

func (f inspection) Open(groupName, name string) (blockdev.Handle, error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, err
	}
	if v.mounts > 0 {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrClaimed)
	}
	if v.cipher != nil {
		return nil, fmt.Errorf("%s/%s: %w by dm-%d (carve.crypt.%s)", groupName, name, lvm.ErrClaimed, v.cipher.minor, name)
	}
	if v.handle != nil {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, lvm.ErrBusy)
	}
	v.handle = &handle{fake: f.machine, group: g, volume: v, groupName: groupName, name: name}
	return v.handle, nil
}

func (f inspection) PoolStatus(groupName, name string) (lvm.PoolStatus, error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return lvm.PoolStatus{}, err
	}
	p := v.pool
	if p == nil {
		return lvm.PoolStatus{}, fmt.Errorf("device %s/%s is not a thin pool", groupName, name)
	}
	if p.failed {
		return lvm.PoolStatus{Failed: true}, nil
	}
	s := lvm.PoolStatus{
		MetadataTotal: int64(len(p.metadata)) * g.extentSize / metadataBlock,
		MetadataUsed:  p.metadataUsed,
		DataTotal:     g.chunks(v), DataUsed: p.used,
		ReadOnly: p.readOnly, NeedsCheck: p.needsCheck, QueuesWhenFull: p.queues,
	}
	if s.MetadataUsed == 0 {
		s.MetadataUsed = 8 + p.used/64
	}
	s.OutOfData = s.DataUsed == s.DataTotal
	return s, nil
}

// Mapping returns one segment per extent.
func (f inspection) Mapping(groupName, name string) ([]lvm.Segment, error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, err
	}
	devices := g.devices(groupName)
	if v.layout().IsRAID() {
		// The kernel decides where the data lies: only the areas are known.
		p := lvm.Segment{Length: int64(len(v.extents)) * g.extentSize}
		for _, e := range v.all() {
			p.Areas = append(p.Areas, g.area(devices, e))
		}
		return []lvm.Segment{p}, nil
	}
	pieces := make([]lvm.Segment, len(v.extents))
	for i := range v.extents {
		at := int64(i) * g.extentSize
		pieces[i] = lvm.Segment{Offset: at, Length: g.extentSize, Exact: true, Areas: []lvm.Area{
			g.area(devices, g.block(v, at)*blockSize/g.extentSize),
		}}
	}
	return pieces, nil
}

func (g *group) area(devices []device, extent int64) lvm.Area {
	for _, d := range devices {
		if i := slices.Index(d.members, extent); i >= 0 {
			return lvm.Area{Device: d.uuid, Start: d.dataOffset + int64(i)*g.extentSize, Length: g.extentSize}
		}
	}
	panic(fmt.Sprintf("extent %d is on no device of its group", extent))
}

func (f inspection) OpenInUse(groupName, name string) (blockdev.Handle, error) {
	defer f.lock()()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", groupName, name, err)
	}
	return &handle{fake: f.machine, group: g, volume: v, groupName: groupName, name: name, shared: true}, nil
}

func (f inspection) RAIDStatus(groupName, name string) (lvm.RAIDStatus, error) {
	defer f.lock()()
	g, v, err := f.active(groupName, strings.TrimSuffix(name, "_tdata"))
	if of, isMetadata := strings.CutSuffix(name, "_tmeta"); isMetadata {
		if g, v, err = f.active(groupName, of); err == nil {
			v = &volume{extents: v.pool.metadata, shape: v.pool.metadataShape}
		}
	}
	switch {
	case err != nil:
		return lvm.RAIDStatus{}, err
	case !v.layout().IsRAID():
		return lvm.RAIDStatus{}, fmt.Errorf("device %s/%s is not of type raid", groupName, name)
	}
	s := v.shape.status
	s.Total = int64(len(v.extents)) / v.shape.layout.Unit() * g.extentSize / 512
	if s.Behind == 0 {
		s.Synced = s.Total
	}
	return s, nil
}
