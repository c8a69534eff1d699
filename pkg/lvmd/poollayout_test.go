//go:build !kernel

package lvmd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// poolLayouts are the pools' layouts other than linear.
var poolLayouts = []struct {
	layout         string
	data, metadata layout.Layout
}{
	{"type: striped, stripes: 2", layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}, layout.Layout{Type: layout.Linear}},
	{"type: raid1", layout.Layout{Type: layout.RAID1, Mirrors: 1}, layout.Layout{Type: layout.RAID1, Mirrors: 1}},
	{"type: raid10, stripes: 2", layout.Layout{Type: layout.RAID10, Stripes: 2, StripeSize: 64 << 10, Mirrors: 1}, layout.Layout{Type: layout.RAID1, Mirrors: 1}},
}

func poolDisks(t *testing.T, layout, settings string) *machine {
	t.Helper()
	m := newDisks(t, 40, 42, 44, 46, 48)
	m.config = thinClass("layout: {"+layout+"}, "+settings) + "- {name: local, volumeGroup: carve}\n"
	return m
}

func (m *machine) poolLies(t *testing.T) (data, metadata ondisk.Volume) {
	t.Helper()
	p := must.Get(m.fake.Placement(testGroup))(t)
	return p.Volumes["pool_tdata"], p.Volumes["pool_tmeta"]
}

func TestAPoolLiesAsItsLayoutSaysAndKeepsThatWhenItGrows(t *testing.T) {
	for _, tt := range poolLayouts {
		t.Run(tt.layout, func(t *testing.T) {
			m := poolDisks(t, tt.layout, "size: 40Mi, dataThreshold: 50%, autoExtend: {step: 12Mi, limit: 64Mi}")
			d := m.start(t)
			data, metadata := m.poolLies(t)
			if data.Layout != tt.data || metadata.Layout != tt.metadata || len(data.On) != tt.data.Devices() {
				t.Errorf("data %+v, metadata %+v", data, metadata)
			}
			if slices.ContainsFunc(metadata.On, func(device string) bool { return !slices.Contains(data.On, device) }) {
				t.Errorf("the metadata lies on %q, the data on %q", metadata.On, data.On)
			}
			free := func() int64 { return d.classNamed("local").GetAvailableBytes() / testExtent }
			taken := tt.data.Raw(10) + tt.metadata.Raw(1) + 1
			if got, want := free(), 40+42+44+46+48-taken; got != want || d.available() != 10 {
				t.Errorf("%d extents are free beside the pool, want %d; %d in it", got, want, d.available())
			}
			v := d.create(request("v", 10))
			must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x11))
			waittest.Until(t, "it grows to its limit", func() bool {
				return d.class().GetTotalBytes() == 16*testExtent && d.hasCondition("PoolCannotGrow")
			})
			after, _ := m.poolLies(t)
			if after.Layout != tt.data || tt.data.IsRAID() && !slices.Equal(after.On, data.On) {
				t.Errorf("after it grew %+v, before %+v", after, data)
			}
			if got, want := free(), 40+42+44+46+48-taken-tt.data.RawGrowth(6); got != want {
				t.Errorf("%d extents are free after it grew, want %d", got, want)
			}
			m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{MetadataUsed: 900})
			waittest.Until(t, "its metadata is doubled", func() bool {
				_, metadata := m.poolLies(t)
				return metadata.Size == 2*testExtent && metadata.Layout == tt.metadata
			})
			d.checkModel()
			d.delete(v.GetId())
		})
	}
}

func TestAPoolWithStripesOnAllDevicesIsMadeOnThoseThatThereAre(t *testing.T) {
	for _, c := range []struct {
		devices []int64
		want    layout.Layout
		extents int64
	}{
		{[]int64{40}, layout.Layout{Type: layout.Linear}, 10},
		{[]int64{40, 42}, layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}, 10},
		{[]int64{40, 42, 44, 46}, layout.Layout{Type: layout.Striped, Stripes: 4, StripeSize: 64 << 10}, 8},
	} {
		m := newDisks(t, c.devices...)
		m.config = thinClass("layout: {type: striped, stripes: all}, size: 40Mi, dataThreshold: 50%, autoExtend: {step: 16Mi, limit: 80Mi}")
		d := m.start(t)
		data, metadata := m.poolLies(t)
		if data.Layout != c.want || data.Size != c.extents*testExtent || !metadata.Layout.IsLinear() {
			t.Errorf("on %d devices: data %+v, metadata %+v, want %d extents, %+v", len(c.devices), data, metadata, c.extents, c.want)
		}
		m.fake.AddDevice(testGroup, 40)
		d.checkModel()
		v := d.create(request("v", c.extents))
		must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x11))
		waittest.Until(t, "it grows", func() bool { return d.class().GetTotalBytes() > c.extents*testExtent })
		if after, _ := m.poolLies(t); after.Layout != c.want {
			t.Errorf("on %d devices and one more it is %+v after it grew, want %+v", len(c.devices), after, c.want)
		}
		d.delete(v.GetId())
	}
}

func TestARAIDPoolGrowsOnItsOwnDevicesOnly(t *testing.T) {
	m := newDisks(t, 14, 14, 60)
	m.config = thinClass("layout: {type: raid1}, size: 40Mi, dataThreshold: 50%, autoExtend: {step: 40Mi}")
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: 50, On: []layout.Share{{Device: "/dev/fake-carve-2", Extents: 50}}}))
	d := m.start(t)
	data, _ := m.poolLies(t)
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"theirs"}))
	v := d.create(request("v", 10))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x11))
	waittest.Until(t, "it says why it cannot grow", func() bool {
		return slices.ContainsFunc(d.class().GetConditions(), func(c *lvmdv1.Condition) bool {
			return c.GetType() == "PoolCannotGrow" && strings.Contains(c.GetMessage(), "the devices that it can grow on")
		})
	})
	after, _ := m.poolLies(t)
	if !slices.Equal(after.On, data.On) || slices.Contains(data.On, "fake-pv-carve-2") {
		t.Errorf("it lies on %q, and on %q when it was made", after.On, data.On)
	}
}

func TestARAIDPoolSaysWhenAnImageFails(t *testing.T) {
	m := poolDisks(t, "type: raid1", "size: 40Mi")
	d := m.start(t)
	v := d.create(request("v", 2))
	m.fake.SetRAIDStatus(testGroup, "pool", lvm.RAIDStatus{Images: 2, Failed: 1, Action: "idle"})
	degraded := func(all []*lvmdv1.Condition) bool {
		return slices.ContainsFunc(all, func(c *lvmdv1.Condition) bool {
			return c.GetType() == "Degraded" && strings.Contains(c.GetMessage(), `thin pool "pool"`)
		})
	}
	waittest.Until(t, "class and volume say so", func() bool {
		return degraded(d.class().GetConditions()) && degraded(d.state().GetVolumes()[0].GetConditions())
	})
	if d.available() != 8 {
		t.Errorf("%d extents are available, want 8: the pool goes on", d.available())
	}
	m.fake.SetRAIDStatus(testGroup, "pool", lvm.RAIDStatus{Images: 2, Action: "idle"})
	waittest.Until(t, "all is well", func() bool { return len(d.class().GetConditions()) == 0 })
	d.delete(v.GetId())
}

func TestAPoolOfALayoutIsMadeWhereverItsMakerCrashed(t *testing.T) {
	for _, tt := range poolLayouts {
		t.Run(tt.layout, func(t *testing.T) {
			kills := 0
			for at := 1; ; at++ {
				m := poolDisks(t, tt.layout, "size: 40Mi")
				first, err := m.tryStart(t, func(d *daemon, _ *Options) { d.gate.crashAt, d.gate.done = at, make(chan struct{}) })
				if err == nil {
					first.gate.mu.Lock()
					first.gate.crashAt = 0
					first.gate.mu.Unlock()
					break
				}
				if !errors.Is(err, errCrashed) {
					t.Fatalf("crashing at place %d: %v", at, err)
				}
				kills++
				d := m.start(t)
				if data, _ := m.poolLies(t); data.Layout != tt.data {
					t.Errorf("after crashing at place %d: %+v", at, data)
				}
				if got := m.volumeNames(t); !slices.Equal(got, []string{"pool"}) {
					t.Errorf("after crashing at place %d there are %q", at, got)
				}
				d.delete(d.create(request("v", 10)).GetId())
				d.stop()
			}
			// Before and after each of three commands, and after that.
			if kills < 9 {
				t.Errorf("lvmd crashed %d times, want at least 9", kills)
			}
		})
	}
}

func TestTheLargestPoolOfALayoutFits(t *testing.T) {
	for _, tt := range poolLayouts {
		t.Run(tt.layout, func(t *testing.T) {
			m := poolDisks(t, tt.layout, "size: 100%")
			m.start(t)
			data, _ := m.poolLies(t)
			// Except for the metadata, each device counts as large as the smallest used.
			least := (tt.data.Available([]int64{40, 42, 44, 46, 48}[5-tt.data.Devices():], 0) - 4) * testExtent
			if data.Size < least {
				t.Errorf("a pool of everything has %d bytes, want at least %d", data.Size, least)
			}
		})
	}
}

func TestAPoolOfALayoutThatDoesNotFitIsAConditionOfItsClass(t *testing.T) {
	for _, c := range []struct{ layout, size, want string }{
		{"type: raid1", "200Mi", "thin.size: a pool of 200Mi of type raid1"},
		{"type: raid1, mirrors: 5", "4Mi", "does not fit into what is free on the 5 devices"},
		{"type: striped, stripes: 6", "24Mi", "does not fit into what is free on the 5 devices"},
		{"type: striped, stripes: 2, stripeSize: 8Mi", "24Mi", `thin.layout.stripeSize: "8388608": more than an extent`},
	} {
		m := poolDisks(t, c.layout, "size: "+c.size)
		d := m.start(t)
		if why := d.message("PoolMissing"); !strings.Contains(why, c.want) {
			t.Errorf("%s of %s: %q, want %q", c.layout, c.size, why, c.want)
		}
		d.stop()
		if got := m.volumeNames(t); len(got) > 0 {
			t.Errorf("%s of %s: there are %q", c.layout, c.size, fmt.Sprint(got))
		}
	}
}
