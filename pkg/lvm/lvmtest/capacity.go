package lvmtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// TB is the common part of tests and of generators of random cases.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var (
	_ TB = (*testing.T)(nil)
	_ TB = (*testing.B)(nil)
)

var layouts = []layout.Layout{
	{},
	{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10},
	{Type: layout.Striped, Stripes: 3},
	{Type: layout.RAID1, Mirrors: 1},
	{Type: layout.RAID1, Mirrors: 2},
	{Type: layout.RAID10, Stripes: 2, StripeSize: 4 << 10, Mirrors: 1},
	{Type: layout.RAID5, Stripes: 2, StripeSize: 64 << 10},
	{Type: layout.RAID6, Stripes: 3},
}

type history struct {
	TB
	Env
	random func(n int) int
	// group is from the last scan; placement is always current.
	group     lvm.Group
	placement ondisk.Placement
	seqno     uint64
	volumes   []carved
	next      int
}

type carved struct {
	name    string
	layout  layout.Layout
	extents int64
}

// Capacity creates, grows and removes volumes of random layouts in a group of several devices,
// and checks the arithmetic: the largest volume fits and one unit more does not, each volume
// takes what was planned of each device, and the placement on disk matches the scan. random
// returns numbers from 0 to n-1.
func Capacity(t TB, e Env, steps int, random func(n int) int) {
	t.Helper()
	h := &history{TB: t, Env: e, random: random}
	h.scan()
	for range steps {
		switch n := random(10); {
		case n < 5 || len(h.volumes) == 0:
			h.create()
		case n < 7:
			h.extend()
		default:
			h.remove()
		}
	}
	h.scan()
}

// scan also compares the scan with the placement.
func (h *history) scan() {
	h.Helper()
	found, err := h.Groups.Scan(context.Background(), []string{h.Group})
	if err != nil || len(found) != 1 {
		h.Fatalf("scan: %d groups, error %v", len(found), err)
	}
	h.group = found[0]
	h.look()
	if h.group.Seqno != h.placement.Seqno {
		h.Fatalf("the scan is of %d, the placement of %d", h.group.Seqno, h.placement.Seqno)
	}
	if got, want := h.group.FreeIn(h.placement), h.group.Free(); !reflect.DeepEqual(got, want) {
		h.Errorf("free by the placement %v, by the scan %v", got, want)
	}
	for _, v := range h.group.Volumes {
		if lie := h.placement.Volumes[v.Name]; lie.Layout != v.Layout || lie.Size != v.Size || !slices.Equal(lie.On, v.On) {
			h.Errorf("volume %s: by the placement %+v, by the scan %+v on %v", v.Name, lie, v.Layout, v.On)
		}
	}
	for _, m := range h.volumes {
		v := h.group.Volume(m.name)
		if v == nil || v.Size != m.extents*h.group.ExtentSize || v.Layout.Type != layoutType(m.layout) || v.Layout.Devices() != m.layout.Devices() {
			h.Errorf("volume %+v is %+v", m, v)
		}
	}
}

func layoutType(l layout.Layout) layout.Type {
	if l.IsLinear() {
		return layout.Linear
	}
	return l.Type
}

func (h *history) look() {
	h.Helper()
	var err error
	if h.placement, err = h.Groups.Placement(h.Group); err != nil {
		h.Fatalf("placement: %v", err)
	}
	h.seqno = h.placement.Seqno
}

func (h *history) free() []layout.Free { return h.group.FreeIn(h.placement) }

// size draws a size up to the largest, often the largest.
func (h *history) size(l layout.Layout, most int64) int64 {
	if h.random(3) == 0 {
		return most
	}
	return l.RoundUp(1 + int64(h.random(int(most))))
}

func (h *history) create() {
	h.Helper()
	l := layouts[h.random(len(layouts))]
	free := h.free()
	most := l.Largest(layout.Counts(free), 0)
	h.next++
	o := lvm.CreateOptions{Group: h.Group, Volume: fmt.Sprintf("cv%d", h.next), Layout: l, Extents: most + l.Unit()}
	if h.random(2) == 0 {
		o.On = freest(l, free)
		if err := h.Groups.Create(context.Background(), o); !errors.Is(err, lvm.ErrNoSpace) {
			h.Fatalf("%v of %v: %d extents, more than %d, error %v", l, free, o.Extents, most, err)
		}
		h.unchanged()
	}
	if most == 0 {
		return
	}
	o.Extents = h.size(l, most)
	o.On = l.Place(free, o.Extents)
	if err := h.Groups.Create(context.Background(), o); err != nil {
		h.Fatalf("%v of %v: %d of at most %d extents: %v", l, free, o.Extents, most, err)
	}
	h.volumes = append(h.volumes, carved{o.Volume, l, o.Extents})
	h.took(l.Commits(), free, o.On)
}

// freest returns shares of the devices that a volume would use, each larger than what is free.
func freest(l layout.Layout, free []layout.Free) []layout.Share {
	sorted := slices.Clone(free)
	slices.SortStableFunc(sorted, func(a, b layout.Free) int { return int(b.Extents() - a.Extents()) })
	var on []layout.Share
	for _, f := range sorted {
		if f.Extents() > 0 && (l.IsLinear() || len(on) < l.Devices()) {
			on = append(on, layout.Share{Device: f.Device, Extents: f.Extents() + 1})
		}
	}
	return on
}

func (h *history) extend() {
	h.Helper()
	m := &h.volumes[h.random(len(h.volumes))]
	l, free := m.layout, h.free()
	on := h.group.PathsOf(h.placement.Volumes[m.name].On)
	most := l.LargestGrowth(free, on, 0)
	if h.random(2) == 0 {
		from := free
		if l.IsRAID() {
			from = slices.DeleteFunc(slices.Clone(free), func(f layout.Free) bool { return !slices.Contains(on, f.Device) })
		}
		// Without devices, LVM would choose others for the images of a RAID volume.
		if beyond := freest(l, from); len(beyond) > 0 || !l.IsRAID() {
			err := h.Groups.Extend(context.Background(), h.Group, m.name, m.extents+most+l.Unit(), beyond...)
			if err == nil || len(beyond) > 0 && !errors.Is(err, lvm.ErrNoSpace) {
				h.Fatalf("%v on %v of %v: growing by more than %d extents: error %v", l, on, free, most, err)
			}
			h.unchanged()
		}
	}
	if most == 0 {
		return
	}
	more := h.size(l, most)
	shares := l.PlaceGrowth(free, on, more)
	if err := h.Groups.Extend(context.Background(), h.Group, m.name, m.extents+more, shares...); err != nil {
		h.Fatalf("%v on %v of %v: growing by %d of at most %d extents: %v", l, on, free, more, most, err)
	}
	m.extents += more
	h.took(1, free, shares)
	if after := h.group.PathsOf(h.placement.Volumes[m.name].On); l.IsRAID() && !slices.Equal(after, on) {
		h.Errorf("%v grew from %v onto %v", l, on, after)
	}
}

func (h *history) remove() {
	h.Helper()
	i := h.random(len(h.volumes))
	before := sum(h.free())
	m := h.volumes[i]
	if err := h.Groups.Remove(context.Background(), h.Group, []string{m.name}); err != nil {
		h.Fatalf("removing %+v: %v", m, err)
	}
	h.volumes = slices.Delete(h.volumes, i, i+1)
	h.look()
	// Bookkeeping is taken once, at creation.
	if got := sum(h.free()) - before; got != m.layout.Raw(m.extents) {
		h.Errorf("%d extents came back from %+v, want %d", got, m, m.layout.Raw(m.extents))
	}
	if h.random(4) == 0 {
		h.scan()
	}
}

func (h *history) took(commits uint64, before []layout.Free, shares []layout.Share) {
	h.Helper()
	was := h.seqno
	h.look()
	if h.seqno != was+commits {
		h.Errorf("the sequence number went from %d to %d, want %d more", was, h.seqno, commits)
	}
	want := layout.Counts(before)
	for i, f := range before {
		for _, s := range shares {
			if s.Device == f.Device {
				want[i] -= s.Extents
			}
		}
	}
	if got := layout.Counts(h.free()); !slices.Equal(got, want) {
		h.Errorf("%v are free on the devices, want %v: %v of %v", got, want, shares, before)
	}
}

func (h *history) unchanged() {
	h.Helper()
	was := h.seqno
	if h.look(); h.seqno != was {
		h.Errorf("a refused command raised the sequence number from %d to %d", was, h.seqno)
	}
}

func sum(free []layout.Free) int64 {
	var n int64
	for _, f := range free {
		n += f.Extents()
	}
	return n
}
