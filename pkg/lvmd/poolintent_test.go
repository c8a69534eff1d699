//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/thinpool"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (m *machine) volumeNames(t *testing.T) []string {
	t.Helper()
	found := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)
	var names []string
	for _, lv := range found[0].Volumes {
		names = append(names, lv.Name)
	}
	slices.Sort(names)
	return names
}

func TestWhatAKilledCommandLeavesOfAPoolIsRemovedAndNothingElse(t *testing.T) {
	spare := lvm.CreateOptions{Group: testGroup, Volume: "lvol1", Extents: 1}
	for _, c := range []struct {
		name string
		// before exists from the start; during is created while LVM creates the pool, before it is
		// killed.
		before, during []lvm.CreateOptions
		left           []string
	}{
		{"nothing was made", nil, nil, nil},
		{"the spare, not yet hidden", nil, []lvm.CreateOptions{spare}, nil},
		{"the metadata, before it was a part of the pool", nil,
			[]lvm.CreateOptions{{Group: testGroup, Volume: "pool", Extents: 1, Tags: []string{thinpool.Tag}}}, nil},
		{"a volume that looks like a spare was there before", []lvm.CreateOptions{spare}, nil, []string{"lvol1"}},
		{"others made two volumes, one of which looks like a spare", nil,
			[]lvm.CreateOptions{spare, {Group: testGroup, Volume: "theirs", Extents: 1}}, []string{"lvol1", "theirs"}},
		{"others made one of another size", nil, []lvm.CreateOptions{{Group: testGroup, Volume: "lvol1", Extents: 2}}, []string{"lvol1"}},
		{"others made one with a tag", nil,
			[]lvm.CreateOptions{{Group: testGroup, Volume: "lvol1", Extents: 1, Tags: []string{"theirs"}}}, []string{"lvol1"}},
		{"others made one with a name", nil, []lvm.CreateOptions{{Group: testGroup, Volume: "theirs", Extents: 1}}, []string{"theirs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, daemon := range []string{"that goes on", "that crashes too"} {
				t.Run("of an lvmd "+daemon, func(t *testing.T) { testKilledPool(t, c.before, c.during, c.left, daemon == "that crashes too") })
			}
		})
	}
}

func testKilledPool(t *testing.T, before, during []lvm.CreateOptions, left []string, crashes bool) {
	m := thinMachine(t, "size: 40Mi")
	make := func(all []lvm.CreateOptions) {
		for _, o := range all {
			must.Succeed(t, m.fake.Create(t.Context(), o))
		}
	}
	make(before)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op != lvmfake.OpCreatePool {
			return nil
		}
		m.fake.Before = nil
		make(during)
		return errors.New("killed")
	}
	d, err := m.tryStart(t, func(d *daemon, _ *Options) {
		if crashes {
			d.gate.crashNext("after create pool")
		}
	})
	switch {
	case crashes && !errors.Is(err, errCrashed), !crashes && err != nil:
		t.Fatalf("error %v", err)
	case !crashes:
		d.stop()
	}
	d = m.start(t)
	if got, want := m.volumeNames(t), append(slices.Clone(left), "pool"); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("volumes %q, want %q", got, want)
	}
	if intents, err := d.journal.PoolIntents(); err != nil || len(intents) > 0 {
		t.Errorf("intents %v, error %v", intents, err)
	}
	d.delete(d.create(request("pvc-1", 1)).GetId())
}

// The volume has the spare's size and a name like LVM's, and is the group's next change.
func TestAVolumeMadeAfterAPoolCouldNotBeIsKept(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreatePool {
			return errors.New("thin_check is not there")
		}
		return nil
	}
	m.start(t).stop()
	m.fake.Before = nil
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "lvol1", Extents: 1}))
	m.start(t)
	if got := m.volumeNames(t); !slices.Equal(got, []string{"lvol1", "pool"}) {
		t.Errorf("volumes %q", got)
	}
}

// LVM removes nothing of a group while lvmd starts, before or after a pool's creation fails.
func TestRemnantsOfAPoolThatCannotBeRemovedStopNoOtherClass(t *testing.T) {
	for name, makes := range map[string]bool{"left by an earlier run": false, "left by this start": true} {
		t.Run(name, func(t *testing.T) {
			m := thinMachine(t, "size: 40Mi")
			m.config += "- {name: linear, volumeGroup: carve}\n"
			remnant := lvm.CreateOptions{Group: testGroup, Volume: "pool", Extents: 1, Tags: []string{thinpool.Tag}}
			if !makes {
				must.Succeed(t, m.fake.Create(t.Context(), remnant))
			}
			var failing atomic.Bool
			failing.Store(true)
			m.fake.Before = func(ctx context.Context, op lvmfake.Op, _ string) error {
				switch {
				case !failing.Load():
				case op == lvmfake.OpRemove:
					return errors.New("the disk says no")
				case op == lvmfake.OpCreatePool:
					return errors.Join(errors.New("killed"), m.fake.Create(ctx, remnant))
				}
				return nil
			}
			d := m.start(t, func(_ *daemon, o *Options) { o.poolRetry = time.Millisecond })
			r := request("pvc-1", 1)
			r.DeviceClass = "linear"
			d.create(r)
			if c := d.classNamed("thin").GetConditions(); len(c) == 0 || c[0].GetType() != conditions.PoolMissing {
				t.Errorf("the class of the pool has the conditions %v, want %s", c, conditions.PoolMissing)
			}
			failing.Store(false)
			waittest.Until(t, "the pool is made", func() bool { return len(d.classNamed("thin").GetConditions()) == 0 })
		})
	}
}

func TestRemnantsOfAPoolAreKnownWithoutAJournal(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "pool", Extents: 1, Tags: []string{thinpool.Tag}}))
	m.start(t)
	if got := m.volumeNames(t); !slices.Equal(got, []string{"pool"}) || m.fake.Commands(lvmfake.OpCreatePool) != 1 {
		t.Errorf("volumes %q", got)
	}
}

func TestWhatAKilledCommandLeftInconsistentIsRepairedAtTheStart(t *testing.T) {
	for _, c := range []struct {
		name, device string
		repaired     bool
	}{
		{"a thin pool", "pool-tpool", true},
		{"a part of a thin pool", "pool_tdata", true},
		{"what belongs to another program", "theirs", false},
		{"what begins alike", "pools", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := thinMachine(t, "size: 40Mi")
			m.start(t).stop()
			m.fake.MakeInconsistent(testGroup, c.device)
			m.start(t).stop()
			if left, err := m.fake.Inconsistent(testGroup); err != nil || (len(left) == 0) != c.repaired {
				t.Errorf("inconsistent: %q, error %v", left, err)
			}
		})
	}
}

func TestAPoolThatCannotBeMadeAtTheStartStopsNoOtherClassAndIsTriedAgain(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	m.fake.AddGroup("other", testExtent, 8)
	m.config += "- {name: other, volumeGroup: other}\n- {name: othin, volumeGroup: other, type: thin, thin: {pool: pool, size: 8Mi}}\n"
	var failing atomic.Bool
	failing.Store(true)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, group string) error {
		if op == lvmfake.OpCreatePool && group == testGroup && failing.Load() {
			return errors.New("the disk says no")
		}
		return nil
	}
	d := m.start(t, func(_ *daemon, o *Options) { o.poolRetry = 10 * time.Millisecond })
	classes := d.state().GetClasses()
	if c := classes[0]; c.GetAvailableBytes() != 0 || len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "PoolMissing" ||
		!strings.Contains(c.GetConditions()[0].GetMessage(), "the disk says no") {
		t.Errorf("the class is %v, want no free space, and PoolMissing with the reason", c)
	}
	for _, i := range []int{1, 2} {
		r := request("pvc-"+classes[i].GetName(), 1)
		r.DeviceClass = classes[i].GetName()
		d.delete(d.create(r).GetId())
	}
	failing.Store(false)
	waittest.Until(t, "the pool is there", func() bool { return d.available() == 10 && len(d.class().GetConditions()) == 0 })
	d.delete(d.create(request("pvc-1", 3)).GetId())
}

func TestAPoolThatCouldNotBeMadeInANewGroupIsTriedAgain(t *testing.T) {
	m := bare(t, anyDisk)
	m.config = strings.Replace(m.config, "volumeGroup: carve", "volumeGroup: carve, type: thin, thin: {pool: pool, size: 40Mi}", 1)
	var tried atomic.Int64
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreatePool && tried.Add(1) < 3 {
			return errors.New("killed")
		}
		return nil
	}
	events := make(chan struct{}, 1)
	d := m.start(t, withDevices(events))
	m.fake.AddDisk(disk("vdb"))
	events <- struct{}{}
	waittest.Until(t, "the pool is there", func() bool { return d.available() == 10 })
	if n := tried.Load(); n != 3 {
		t.Errorf("it was tried %d times", n)
	}
}

func TestThePoolOfAGroupThatAppearsIsMade(t *testing.T) {
	isMade := func(t *testing.T, d *daemon) {
		t.Helper()
		waittest.Until(t, "the pool is made", func() bool { return d.available() == 10 && len(d.class().GetConditions()) == 0 }, func() any { return d.class() })
	}
	t.Run("by its disks", func(t *testing.T) {
		m := thinMachine(t, "size: 40Mi")
		m.fake.PlugGroup(testGroup, false)
		events := make(chan struct{}, 1)
		d := m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
		m.fake.PlugGroup(testGroup, true)
		events <- struct{}{}
		isMade(t, d)
	})
	t.Run("made by a command that was killed after that", func(t *testing.T) {
		m := bare(t, anyDisk)
		m.config = strings.Replace(m.config, "volumeGroup: carve", "volumeGroup: carve, type: thin, thin: {pool: pool, size: 40Mi}", 1)
		events := make(chan struct{}, 1)
		d := m.start(t, withDevices(events), func(_ *daemon, o *Options) { o.Devices = lateDevices{o.Devices} })
		m.fake.AddDisk(disk("vdb"))
		events <- struct{}{}
		isMade(t, d)
	})
}

type lateDevices struct{ lvm.Devices }

func (l lateDevices) CreateGroup(ctx context.Context, o lvm.GroupOptions) error {
	return errors.Join(l.Devices.CreateGroup(ctx, o), lvm.ErrTimedOut)
}
