package lvmfake

import (
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// bookkeeping is the pattern of RAID's bookkeeping. It outlives the volume.
const bookkeeping = 0x4d

type shape struct {
	layout layout.Layout
	// books are RAID's bookkeeping, one extent per image.
	books []int64
	// shadows lists, for each of the volume's extents, those with its copies or parity.
	shadows [][]int64
	status  lvm.RAIDStatus
}

// extra returns all extents beside the data.
func (s *shape) extra() []int64 {
	if s == nil {
		return nil
	}
	all := slices.Clone(s.books)
	for _, e := range s.shadows {
		all = append(all, e...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type device struct {
	path, uuid string
	// dataOffset is in bytes; members are the group's extents on the device, in order.
	dataOffset int64
	members    []int64
}

func (g *group) devices(name string) []device {
	if g.disks == nil {
		d := device{path: "/dev/fake-" + name, uuid: g.device, dataOffset: g.dataOffset, members: make([]int64, g.extents)}
		for i := range d.members {
			d.members[i] = int64(i)
		}
		return []device{d}
	}
	var all []device
	for _, d := range g.disks {
		all = append(all, device{path: d.Path, uuid: d.contents.Label.UUID, dataOffset: d.dataOffset, members: d.members})
	}
	return all
}

func (g *group) runs(d device) []layout.Run {
	var runs []layout.Run
	for i, e := range d.members {
		if !g.free[e] {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].Start+runs[n-1].Length == int64(i) {
			runs[n-1].Length++
		} else {
			runs = append(runs, layout.Run{Start: int64(i), Length: 1})
		}
	}
	return runs
}

// takeFrom takes the lowest extents first.
func (g *group) takeFrom(command string, d device, s layout.Share) ([]int64, error) {
	runs := s.Runs
	if len(runs) == 0 {
		runs = []layout.Run{{Start: 0, Length: int64(len(d.members))}}
	}
	var got []int64
	for _, r := range runs {
		for i := r.Start; i < min(r.Start+r.Length, int64(len(d.members))) && int64(len(got)) < s.Extents; i++ {
			if e := d.members[i]; g.free[e] {
				got = append(got, e)
			}
		}
	}
	if int64(len(got)) < s.Extents {
		return nil, failure(command, lvm.ErrNoSpace, "%d extents needed on %s, %d free", s.Extents, s.Device, len(got))
	}
	for _, e := range got {
		g.free[e] = false
	}
	return got, nil
}

// allocate allocates all shares or none.
func (g *group) allocate(command, name string, on []layout.Share) ([][]int64, error) {
	var got [][]int64
	devices := g.devices(name)
	for _, s := range on {
		i := slices.IndexFunc(devices, func(d device) bool { return d.path == s.Device })
		if i < 0 {
			g.give(slices.Concat(got...))
			return nil, failure(command, lvm.ErrNotFound, "device %s", s.Device)
		}
		extents, err := g.takeFrom(command, devices[i], s)
		if err != nil {
			g.give(slices.Concat(got...))
			return nil, err
		}
		got = append(got, extents)
	}
	return got, nil
}

// layOut adds the extents of a new volume, or of its growth by more, as LVM does.
func (g *group) layOut(command, name string, v *volume, l layout.Layout, more int64, on []layout.Share) error {
	fresh := len(v.extents) == 0
	if more%l.Unit() != 0 {
		return failure(command, nil, "%d extents are no multiple of %d", more, l.Unit())
	}
	if len(on) == 0 {
		if on = g.choose(name, v, l, more); on == nil {
			return failure(command, lvm.ErrNoSpace, "%d more extents of %v", more, l)
		}
	}
	if !l.IsLinear() && len(on) != l.Devices() {
		return failure(command, lvm.ErrNoSpace, "%v on %d devices", l, len(on))
	}
	got, err := g.allocate(command, name, on)
	if err != nil {
		return err
	}
	if l.IsLinear() {
		v.extents = append(slices.Clone(v.extents), slices.Concat(got...)[:more]...)
		return nil
	}
	if v.shape == nil {
		v.shape = &shape{layout: l}
	} else {
		grown := *v.shape
		v.shape = &grown
	}
	if fresh && l.IsRAID() {
		v.shape.status = lvm.RAIDStatus{Images: l.Devices(), Action: "idle"}
		for i := range got {
			v.shape.books = append(v.shape.books, got[i][0])
			g.writeBookkeeping(got[i][0])
			got[i] = got[i][1:]
		}
	}
	v.extents, v.shape.shadows = slices.Clone(v.extents), slices.Clone(v.shape.shadows)
	for row := range got[0] {
		g.addRow(v, got, row)
	}
	return nil
}

func (g *group) addRow(v *volume, got [][]int64, row int) {
	l := v.shape.layout
	for stripe := range l.Unit() {
		data, shadows := stripe, got[l.Unit():]
		if l.Type == layout.RAID10 { // Copies lie next to the data.
			data, shadows = 2*stripe, got[2*stripe+1:2*stripe+2]
		}
		var with []int64
		for _, s := range shadows {
			with = append(with, s[row])
		}
		v.extents = append(v.extents, got[data][row])
		v.shape.shadows = append(v.shape.shadows, with)
	}
}

func (g *group) writeBookkeeping(extent int64) {
	blocks := g.extentSize / blockSize
	g.dirty.put(extent*blocks, blocks, 0)
	g.dirty.put(extent*blocks, 1, bookkeeping)
}

func (g *group) choose(name string, v *volume, l layout.Layout, more int64) []layout.Share {
	var free []layout.Free
	var own []string
	for _, d := range g.devices(name) {
		free = append(free, layout.Free{Device: d.path, Runs: g.runs(d)})
		if slices.Contains(g.on(name, v), d.uuid) {
			own = append(own, d.path)
		}
	}
	if len(v.extents) > 0 {
		return l.PlaceGrowth(free, own, more)
	}
	return l.Place(free, more)
}

func (g *group) on(name string, v *volume) []string {
	var on []string
	all := v.all()
	if g.disks == nil && len(all) > 0 {
		return []string{"fake-pv-" + name}
	}
	for _, d := range g.devices(name) {
		if slices.ContainsFunc(all, func(e int64) bool {
			_, is := slices.BinarySearch(d.members, e)
			return is
		}) {
			on = append(on, d.uuid)
		}
	}
	slices.Sort(on)
	return on
}

func (v *volume) layout() layout.Layout {
	if v.shape == nil {
		return layout.Layout{Type: layout.Linear}
	}
	return v.shape.layout
}

// shadows returns the extents with copies or parity of an extent. Parity is dirty if anything
// was.
func (v *volume) shadows(extent int64) []int64 {
	if v.shape == nil {
		return nil
	}
	return v.shape.shadows[extent]
}
