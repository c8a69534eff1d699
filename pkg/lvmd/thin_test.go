//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func thinClass(settings string) string {
	return fmt.Sprintf("- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: pool, %s}}\n", settings)
}

func thinMachine(t *testing.T, settings string) *machine {
	m := newMachine(t)
	m.config = thinClass(settings)
	return m
}

func (d *daemon) class() *lvmdv1.DeviceClass {
	d.t.Helper()
	return d.state().GetClasses()[0]
}

func (d *daemon) hasCondition(kind string) bool {
	d.t.Helper()
	return slices.ContainsFunc(d.class().GetConditions(), func(c *lvmdv1.Condition) bool { return c.GetType() == kind })
}

func TestAPoolIsMadeOnceAndAdoptedThen(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 2.5")
	d := m.start(t)
	if got := d.available(); got != 20 {
		t.Errorf("%d extents are available, want 2.5 times 80%% of 10", got)
	}
	if c := d.class(); c.GetTotalBytes() != 25*testExtent || c.GetType() != "thin" || len(c.GetConditions()) > 0 {
		t.Errorf("class %v", c)
	}
	found, _ := m.fake.Scan(t.Context(), []string{testGroup})
	if taken := testTotal - found[0].Allocatable(); taken != 12 {
		t.Errorf("the pool takes %d extents of the group, want 10 and 2 of metadata", taken)
	}
	d.stop()
	d = m.start(t)
	if n := m.fake.Commands(lvmfake.OpCreatePool); n != 1 || d.available() != 20 {
		t.Errorf("%d pools were made, %d extents are available", n, d.available())
	}
}

func TestAPoolOfAPercentageTakesThatWithItsMetadata(t *testing.T) {
	m := thinMachine(t, "size: 100%, metadataSize: 8Mi")
	d := m.start(t)
	if got := d.available(); got != testTotal-4 {
		t.Errorf("%d extents are available of %d", got, testTotal)
	}
}

func TestAPoolThatCannotBeIsAConditionOfItsClass(t *testing.T) {
	for _, c := range []struct {
		name, settings string
		before         func(*testing.T, *lvmfake.Groups)
		kind, want     string
		after          func(*testing.T, *lvmfake.Groups)
	}{
		{"a pool smaller than an extent", "size: 3Mi", nil, "PoolMissing", "deviceClasses[0].thin.size: it leaves no extent for data: those of volume group \"carve\" have 4Mi; at least 4Mi are needed", nil},
		{"a share of the group that is smaller than the metadata", "size: 1%", nil, "PoolMissing", "deviceClasses[0].thin.size: it leaves no extent for data: those of volume group \"carve\" have 4Mi; at least 12Mi are needed", nil},
		{"a pool larger than the group", "size: 1Gi", nil, "PoolMissing", "deviceClasses[0].thin.size: a pool of 1Gi, with 4Mi of metadata and as much again for its repair, needs 1032Mi of volume group \"carve\", of which 256Mi are free", nil},
		{"a name that is taken", "size: 40Mi", func(t *testing.T, f *lvmfake.Groups) {
			must.Succeed(t, f.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "pool", Extents: 1}))
		}, "PoolMissing", "is no thin pool", func(t *testing.T, f *lvmfake.Groups) {
			must.Succeed(t, f.Remove(t.Context(), testGroup, []string{"pool"}))
		}},
		{"a pool that shows old data", "size: 40Mi", func(t *testing.T, f *lvmfake.Groups) {
			must.Succeed(t, f.CreatePool(t.Context(), lvm.PoolOptions{Group: testGroup, Pool: "pool", Extents: 5, MetadataBytes: testExtent, ChunkSize: 64 << 10}))
			f.SetPoolZeroing(testGroup, "pool", false)
		}, "PoolKeepsOldData", "lvchange --zero y carve/pool", func(_ *testing.T, f *lvmfake.Groups) {
			f.SetPoolZeroing(testGroup, "pool", true)
		}},
		{"a pool for which there is no space", "size: 40Mi", func(t *testing.T, f *lvmfake.Groups) {
			must.Succeed(t, f.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: testTotal - 5}))
		}, "PoolMissing", "deviceClasses[0].thin.size", func(t *testing.T, f *lvmfake.Groups) {
			must.Succeed(t, f.Remove(t.Context(), testGroup, []string{"theirs"}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := thinMachine(t, c.settings)
			if c.before != nil {
				c.before(t, m.fake)
			}
			m.config += "- {name: plain, volumeGroup: carve}\n"
			d := m.start(t, func(_ *daemon, o *Options) { o.poolRetry = time.Millisecond })
			if why := d.message(c.kind); !strings.Contains(why, c.want) || d.available() != 0 {
				t.Errorf("the condition %s says %q, want %s", c.kind, why, c.want)
			}
			_, err := d.client.CreateVolume(t.Context(), request("thin", 1))
			wantCode(t, err, codes.ResourceExhausted, "NO_SPACE")
			plain := request("plain", 1)
			plain.DeviceClass = "plain"
			d.delete(d.create(plain).GetId())
			if c.after == nil {
				return
			}
			c.after(t, m.fake)
			waittest.Until(t, "the class can be used", func() bool { return len(d.class().GetConditions()) == 0 })
			d.create(request("thin", 1))
		})
	}
}

func TestThinVolumesCostOneCommandAndNoWipe(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 2")
	d := m.start(t)
	scans := m.fake.Commands(lvmfake.OpScan)
	a := d.create(fsRequest("a", 8, "ext4"))
	b := d.create(request("b", 12))
	if a.GetSizeBytes() != 8*testExtent || d.available() != 0 {
		t.Errorf("volume %v, %d extents left", a, d.available())
	}
	_, err := d.client.CreateVolume(t.Context(), request("c", 1))
	wantCode(t, err, codes.ResourceExhausted, "NO_SPACE")
	d.delete(b.GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == 12 })
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: a.GetId(), RequiredBytes: 21 * testExtent})
	wantCode(t, err, codes.OutOfRange, "SIZE_OUT_OF_RANGE")
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: a.GetId(), RequiredBytes: 20 * testExtent}))(t)
	if got := d.available(); got != 0 {
		t.Errorf("%d extents are left", got)
	}
	if n := m.fake.Commands(lvmfake.OpScan) - scans; n != 0 {
		t.Errorf("%d scans were needed", n)
	}
	if n := m.fake.Commands(lvmfake.OpCreateThin) + m.fake.Commands(lvmfake.OpRemove) + m.fake.Commands(lvmfake.OpExtend); n != 4 {
		t.Errorf("%d commands for two creates, an expansion and a deletion", n)
	}
	if s, err := m.fake.PoolStatus(testGroup, "pool"); err != nil || s.DataUsed != 0 {
		t.Errorf("making and deleting volumes wrote to the pool: %+v, error %v", s, err)
	}
	d.checkModel()
}

type hangingPool struct {
	lvm.Groups
	hangs atomic.Bool
	// asked counts requests that got no response.
	asked atomic.Int64
}

func (p *hangingPool) PoolStatus(group, pool string) (lvm.PoolStatus, error) {
	if p.hangs.Load() {
		p.asked.Add(1)
		return lvm.PoolStatus{}, fmt.Errorf("%s/%s: %w", group, pool, lvm.ErrTimedOut)
	}
	return p.Groups.PoolStatus(group, pool)
}

func TestAPoolThatDoesNotAnswerIsNotCalledInactive(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	pool := &hangingPool{}
	d := m.start(t, func(_ *daemon, o *Options) { pool.Groups, o.LVM = o.LVM, pool })
	pool.hangs.Store(true)
	// The third request shows that the first result was processed.
	waittest.Until(t, "the pool is asked again", func() bool { return pool.asked.Load() > 2 })
	if c := d.class(); len(c.GetConditions()) > 0 || c.GetAvailableBytes() != 10*testExtent {
		t.Errorf("class %v, want no condition and 10 extents available", c)
	}
	pool.hangs.Store(false)
	must.Succeed(t, m.fake.Fill(testGroup, d.create(request("v", 10)).GetId(), 0x5a))
	waittest.Until(t, "the pool's fullness is seen", func() bool { return d.hasCondition("PoolFull") })
}

func TestNoThinVolumeShowsWhatAnEarlierOneHeld(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	d := m.start(t)
	for generation := range 4 {
		v := d.create(request("v", 10))
		if n, pattern, err := m.fake.Traces(testGroup, v.GetId()); n > 0 || err != nil {
			t.Errorf("generation %d shows %d blocks of %#x, error %v", generation, n, pattern, err)
		}
		must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), byte(0xa0+generation)))
		waittest.Until(t, "the pool's fullness is seen", func() bool { return d.hasCondition("PoolFull") })
		d.delete(v.GetId())
		waittest.Until(t, "the space is back", func() bool { return d.available() == 10 })
	}
}

func TestAPassedThresholdIsReportedAndRefusesOverprovisionedVolumes(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 3, dataThreshold: 50%")
	d := m.start(t)
	if got := d.available(); got != 15 {
		t.Errorf("%d extents are available, want 3 times half of 10", got)
	}
	a := d.create(request("a", 4))
	must.Succeed(t, m.fake.Fill(testGroup, a.GetId(), 1))
	// 4 of 10 are used: one more fits below the threshold, or 6 that could be filled.
	waittest.Until(t, "the use is seen", func() bool { return d.available() == 6 })
	b := d.create(request("b", 6))
	if got := d.available(); got != 3 {
		t.Errorf("%d extents are available, want 3 times one", got)
	}
	_, err := d.client.CreateVolume(t.Context(), request("c", 4))
	wantCode(t, err, codes.ResourceExhausted, "NO_SPACE")
	d.create(request("c", 3))
	if d.hasCondition("PoolDataHigh") {
		t.Error("there is a condition already")
	}
	must.Succeed(t, m.fake.Fill(testGroup, b.GetId(), 1))
	waittest.Until(t, "there is a condition", func() bool { return d.hasCondition("PoolDataHigh") && d.hasCondition("PoolFull") })
	if got := d.available(); got != 0 {
		t.Errorf("%d extents are available", got)
	}
	resp, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: a.GetId()})
	if err != nil || len(resp.GetVolume().GetConditions()) != 1 || resp.GetVolume().GetConditions()[0].GetType() != "PoolFull" {
		t.Errorf("a volume of the full pool: %v, error %v", resp, err)
	}
	_, err = d.client.CreateVolume(t.Context(), request("d", 1))
	wantCode(t, err, codes.ResourceExhausted, "NO_SPACE")
	if !strings.Contains(err.Error(), "is full") {
		t.Errorf("the reason is not reported: %v", err)
	}
	d.delete(b.GetId())
	waittest.Until(t, "all is well", func() bool { return len(d.class().GetConditions()) == 0 && d.available() == 3 })
}

func TestABrokenPoolIsReportedAndTakesNoVolume(t *testing.T) {
	for _, c := range []struct {
		condition string
		status    lvm.PoolStatus
	}{
		{"PoolFailed", lvm.PoolStatus{Failed: true}},
		{"PoolReadOnly", lvm.PoolStatus{ReadOnly: true}},
		{"PoolNeedsCheck", lvm.PoolStatus{NeedsCheck: true}},
		{"PoolMetadataHigh", lvm.PoolStatus{MetadataUsed: 820}},
	} {
		t.Run(c.condition, func(t *testing.T) {
			m := thinMachine(t, "size: 40Mi")
			d := m.start(t)
			m.fake.SetPool(testGroup, "pool", c.status)
			waittest.Until(t, "the condition is reported", func() bool { return d.hasCondition(c.condition) && d.available() == 0 })
			_, err := d.client.CreateVolume(t.Context(), request("a", 1))
			wantCode(t, err, codes.ResourceExhausted, "NO_SPACE")
			m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{})
			waittest.Until(t, "all is well", func() bool { return d.available() == 10 })
		})
	}
	t.Run("PoolQueuesWhenFull", func(t *testing.T) {
		m := thinMachine(t, "size: 40Mi")
		d := m.start(t)
		m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{QueuesWhenFull: true})
		waittest.Until(t, "the condition is reported", func() bool { return d.hasCondition("PoolQueuesWhenFull") })
		d.create(request("a", 1))
	})
	t.Run("PoolKeepsOldData", func(t *testing.T) {
		m := thinMachine(t, "size: 40Mi")
		d := m.start(t)
		m.fake.SetPoolZeroing(testGroup, "pool", false)
		waittest.Until(t, "the condition is reported", func() bool { return d.hasCondition("PoolKeepsOldData") && d.available() == 0 })
	})
	t.Run("PoolMissing", func(t *testing.T) {
		m := thinMachine(t, "size: 40Mi")
		d := m.start(t)
		d.create(request("a", 1))
		m.fake.RemovePool(testGroup, "pool")
		waittest.Until(t, "the condition is reported", func() bool { return d.hasCondition("PoolMissing") && d.available() == 0 && len(d.list()) == 0 })
	})
}

// LVM renames it when the pool gets its first volume or loses its last.
func TestAPoolWhoseDeviceIsAwayDuringACommandIsNotMissing(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	d := m.start(t)
	p := d.inventory.Pools(nil)[0]
	done := must.Get(d.groups.Acquire(t.Context(), d.groups.Named(testGroup)))(t)
	m.fake.Deactivate()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		d.pools.look(p)
	}()
	waittest.Until(t, "an operation waits for the command to end", func() bool { return d.groups.Named(testGroup).Queue().Waiting > 0 })
	if d.hasCondition("PoolInactive") || d.available() == 0 {
		t.Error("it is called missing")
	}
	must.Succeed(t, m.fake.Activate(t.Context(), testGroup, []string{p.Name()}))
	done()
	<-looked
	if d.hasCondition("PoolInactive") {
		t.Error("it is called missing afterwards")
	}
	d.create(request("a", 1))
	m.fake.Deactivate()
	waittest.Until(t, "one that stays away is called missing", func() bool { return d.hasCondition("PoolInactive") })
}

func TestAPoolGrowsWhenItFillsUpAndSaysWhenItCannot(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 3, dataThreshold: 50%, autoExtend: {step: 8Mi, limit: 64Mi}")
	d := m.start(t)
	v := d.create(request("a", 12))
	h := must.Get(m.fake.Open(testGroup, v.GetId()))(t)
	write := func(extents int64) {
		t.Helper()
		for off := int64(0); off < extents*testExtent; off += 4096 {
			must.Get(h.WriteAt([]byte{1}, off))(t)
		}
	}
	size := func() int64 { return d.class().GetTotalBytes() / 3 / testExtent }
	write(5)
	waittest.Until(t, "it grows by a step, which is enough", func() bool { return size() == 12 })
	write(8)
	waittest.Until(t, "it grows to its limit", func() bool { return size() == 16 && d.hasCondition("PoolCannotGrow") })
	d.checkModel()
	d.delete2(h, v.GetId())
	waittest.Until(t, "all is well", func() bool { return len(d.class().GetConditions()) == 0 })
}

func TestAPoolThatCouldNotGrowIsTriedAgainSoon(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 3, dataThreshold: 50%, autoExtend: {step: 8Mi}")
	var tried atomic.Int64
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtendPool && tried.Add(1) == 1 {
			return errors.New("killed")
		}
		return nil
	}
	d := m.start(t)
	v := d.create(request("a", 6))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 1))
	waittest.Until(t, "it has grown all the same", func() bool { return d.class().GetTotalBytes() > 3*10*testExtent })
	d.checkModel()
}

func (d *daemon) delete2(h blockdev.Handle, id string) {
	d.t.Helper()
	must.Succeed(d.t, h.Close())
	d.delete(id)
}

func TestAPoolsMetadataGrows(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, autoExtend: {}")
	d := m.start(t)
	m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{MetadataUsed: 900})
	waittest.Until(t, "the metadata is doubled", func() bool {
		found, err := m.fake.Scan(t.Context(), []string{testGroup})
		return err == nil && found[0].Volume("pool").MetadataSize == 2*testExtent
	})
	waittest.Until(t, "all is well", func() bool { return len(d.class().GetConditions()) == 0 && d.available() == 10 })
	d.checkModel()
}

// Without metadata, the pool would fail all of its volumes.
func TestAPoolsMetadataGrowThoughItsDataCannot(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, dataThreshold: 50%, autoExtend: {step: 8Mi}")
	d := m.start(t)
	v := d.create(request("a", 6))
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtendPool {
			return errors.New("the disk says no")
		}
		return nil
	}
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 1))
	m.fake.SetPool(testGroup, "pool", lvm.PoolStatus{MetadataUsed: 900})
	waittest.Until(t, "the metadata are doubled", func() bool {
		found, err := m.fake.Scan(t.Context(), []string{testGroup})
		return err == nil && found[0].Volume("pool").MetadataSize == 2*testExtent
	})
}

func TestAThinAndALinearClassShareAGroup(t *testing.T) {
	m := thinMachine(t, "size: 40Mi, overprovisioning: 2, dataThreshold: 50%, autoExtend: {step: 40Mi}")
	m.config = strings.Replace(m.config, "type: thin", "type: thin, reserve: 16Mi", 1) + "- {name: local, volumeGroup: carve}\n"
	d := m.start(t)
	linear := func() int64 { return d.state().GetClasses()[1].GetAvailableBytes() / testExtent }
	if got := linear(); got != testTotal-12 {
		t.Errorf("%d extents are left to the linear class", got)
	}
	r := request("l", testTotal-12-7)
	r.DeviceClass = "local"
	d.create(r)
	v := d.create(request("a", 5))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 1))
	// Seven are free, four of them reserved.
	waittest.Until(t, "the pool takes what the reserve leaves", func() bool { return linear() == 4 && d.class().GetTotalBytes() == 26*testExtent })
	d.checkModel()
}

func TestPoolsAndTheirVolumesComeBackAfterAReboot(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	d := m.start(t)
	v := d.create(request("a", 3))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 7))
	d.stop()
	m.fake.Deactivate()
	d = m.start(t)
	if got := d.create(request("a", 3)); got.GetId() != v.GetId() || len(got.GetConditions()) > 0 || got.GetDevicePath() == "" {
		t.Errorf("volume %v", got)
	}
	if got := d.available(); got != 7 {
		t.Errorf("%d extents are available", got)
	}
	d.delete(v.GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == 10 })
	d.stop()
	m.fake.Deactivate()
	if d = m.start(t); d.available() != 10 {
		t.Errorf("%d extents are available in a pool without volumes", d.available())
	}
}
