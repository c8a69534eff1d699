//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// traces fails the test unless the volume reads as zeroes.
func (d *daemon) traces(id string) {
	d.t.Helper()
	n, pattern, err := d.machine.fake.Traces(testGroup, id)
	if err != nil {
		d.t.Fatal(err)
	}
	if n > 0 {
		d.t.Errorf("volume %s shows %d blocks of an earlier one, such as %#x", id, n, pattern)
	}
}

func (m *machine) fill(t *testing.T, id string, pattern byte) {
	t.Helper()
	must.Succeed(t, m.fake.Fill(testGroup, id, pattern))
}

func (m *machine) zeroed() *int64 {
	n := new(int64)
	m.fake.BeforeZero = func(_, _ string, _, length int64) error {
		*n += length
		return nil
	}
	return n
}

func TestARawVolumeShowsNothingOfWhatWasThereBefore(t *testing.T) {
	for _, c := range []struct {
		name string
		// before leaves data on the disk that lvmd did not wipe.
		before func(t *testing.T, m *machine, d *daemon) *daemon
	}{
		{"in the disk's first run with us", func(t *testing.T, m *machine, d *daemon) *daemon {
			d.stop()
			m.dirty(t)
			os.RemoveAll(filepath.Join(m.state, "journal.db"))
			return m.start(t)
		}},
		{"when a volume was removed by another program", func(t *testing.T, m *machine, d *daemon) *daemon {
			v := d.create(request("a", testTotal))
			m.fill(t, v.GetId(), 0x5a)
			must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{v.GetId()}))
			waittest.Until(t, "it was noticed", func() bool { return d.available() == testTotal })
			return d
		}},
		{"when a volume was removed while lvmd was away", func(t *testing.T, m *machine, d *daemon) *daemon {
			v := d.create(request("a", testTotal))
			m.fill(t, v.GetId(), 0x5a)
			d.stop()
			must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{v.GetId()}))
			return m.start(t)
		}},
		{"when another program used the space and gave it back", func(t *testing.T, m *machine, d *daemon) *daemon {
			m.dirty(t)
			waittest.Until(t, "it was noticed", func() bool { return d.available() == testTotal })
			return d
		}},
		{"when a class of the group is not wiped", func(t *testing.T, m *machine, d *daemon) *daemon {
			d.uses(m, "careless")
			return d
		}},
		{"when a class of the group only discards", func(t *testing.T, m *machine, d *daemon) *daemon {
			d.uses(m, "discarding")
			return d
		}},
		{"when the journal was lost between deletion and wipe", func(t *testing.T, m *machine, d *daemon) *daemon {
			v := d.create(request("a", testTotal))
			m.fill(t, v.GetId(), 0x5a)
			crashed := d.gate.crashNext("delete: tombstone written")
			go d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			<-crashed
			d.kill()
			os.RemoveAll(filepath.Join(m.state, "journal.db"))
			d = m.start(t)
			d.delete(v.GetId())
			waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
			return d
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.config = policies
			d := c.before(t, m, m.start(t))
			half := d.create(request("b", testTotal/2))
			d.traces(half.GetId())
			resp := must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: half.GetId(), RequiredBytes: testTotal * testExtent}))(t)
			d.traces(resp.GetVolume().GetId())
		})
	}
}

func (d *daemon) uses(m *machine, class string) {
	d.t.Helper()
	r := request("user", testTotal)
	r.DeviceClass = class
	v := d.create(r)
	m.fill(d.t, v.GetId(), 0x5a)
	d.delete(v.GetId())
	waittest.Until(d.t, "it is gone", func() bool { return d.available() == testTotal })
}

func TestWhatADeviceMakesOfADiscardIsItsOwn(t *testing.T) {
	for _, zeroes := range []bool{true, false} {
		m := newMachine(t)
		m.fake.DiscardZeroes = zeroes
		m.config = policies
		d := m.start(t)
		d.uses(m, "discarding")
		again := request("a", testTotal)
		again.DeviceClass = "discarding"
		n, _, err := m.fake.Traces(testGroup, d.create(again).GetId())
		if (n == 0) != zeroes || err != nil {
			t.Errorf("devices zero what they discard: %t; the class that wants no more shows %d blocks, error %v", zeroes, n, err)
		}
	}
}

// dirty uses and frees all of the disk as another program would.
func (m *machine) dirty(t *testing.T) {
	t.Helper()
	m.dirtyFree(t, testTotal)
}

func (m *machine) dirtyFree(t *testing.T, extents int64) {
	t.Helper()
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: extents}))
	m.fill(t, "theirs", 0x77)
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"theirs"}))
}

// Another program uses and frees the disk after lvmd wiped all of it; no scan knows.
func TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, pollsRarely)
	v := d.create(request("wiped", testTotal))
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	v = d.create(request("grows", 2))
	m.dirtyFree(t, testTotal-2)
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}))(t)
	d.traces(v.GetId())
}

func TestARawVolumeDoesNotGrowIntoWhatAnotherProgramHadInBetween(t *testing.T) {
	for name, wiped := range map[string]bool{"what was wiped": true, "what is zeroed for it": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.dirty(t)
			var once sync.Once
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpExtend {
					once.Do(func() { m.dirtyFree(t, testTotal-2) })
				}
				return nil
			}
			d := m.start(t, pollsRarely)
			if wiped {
				d.delete(d.create(request("wiped", testTotal)).GetId())
				waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
			}
			v := d.create(request("grows", 2))
			grow := &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}
			_, err := d.client.ExpandVolume(t.Context(), grow)
			wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
			d.traces(v.GetId())
			must.Get(d.client.ExpandVolume(t.Context(), grow))(t)
			d.traces(v.GetId())
		})
	}
}

// betweenReads lets another program change the group once after armed is set: right after lvmd
// reads its metadata or a mapping.
type betweenReads struct {
	lvm.Groups
	armed  atomic.Bool
	once   sync.Once
	change func()
}

func (b *betweenReads) Metadata(group string) (ondisk.Metadata, error) {
	defer b.read()
	return b.Groups.Metadata(group)
}

func (b *betweenReads) Mapping(group, volume string) ([]lvm.Segment, error) {
	defer b.read()
	return b.Groups.Mapping(group, volume)
}

func (b *betweenReads) read() {
	if b.armed.Load() {
		b.once.Do(b.change)
	}
}

// An administrator moves the zeroed extents and another program uses the freed ones, between
// lvmd's reads of the mapping and of the sequence number.
func TestARawVolumeDoesNotGrowIntoWhereItsExtensionWas(t *testing.T) {
	m := newMachine(t)
	m.dirty(t)
	lvms := &betweenReads{}
	d := m.start(t, pollsRarely, func(_ *daemon, o *Options) { lvms.Groups, o.LVM = o.LVM, lvms })
	v := d.create(request("grows", 2))
	lvms.change = func() {
		groups := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)
		for _, lv := range groups[0].Volumes {
			if lv.Name != v.GetId() {
				must.Succeed(t, m.fake.Move(testGroup, lv.Name))
			}
		}
		m.dirtyFree(t, testTotal-8)
	}
	m.fake.BeforeZero = func(_, _ string, _, _ int64) error {
		lvms.armed.Store(true)
		return nil
	}
	_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	d.traces(v.GetId())
	must.Get(d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8)))(t)
	d.traces(v.GetId())
}

func TestWhatWasWipedIsNotClearedAgain(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", testTotal))
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	n := m.zeroed()
	v = d.create(request("b", testTotal/2))
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}))(t)
	if *n != 0 {
		t.Errorf("%d bytes were zeroed of what is known to be clean", *n)
	}
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	for _, how := range []struct {
		name string
		end  func()
	}{{"a stop", d.stop}, {"a kill", nil}} {
		t.Run("nor after "+how.name, func(t *testing.T) {
			if how.end == nil {
				d.kill()
			} else {
				how.end()
			}
			d = m.start(t)
			n := m.zeroed()
			v := d.create(request("c", testTotal))
			if *n != 0 {
				t.Errorf("%d bytes were zeroed of what is known to be clean", *n)
			}
			d.delete(v.GetId())
			waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
			waittest.Until(t, "the journal has forgotten it", func() bool {
				records, err := d.journal.Volumes()
				return err == nil && len(records) == 0
			})
		})
	}
}

// meddler moves a wiped volume once lvmd has read its mapping, and reuses its former place.
type meddler struct {
	lvm.Groups
	d     *daemon
	armed atomic.Bool
}

func (f *meddler) Mapping(group, volume string) ([]lvm.Segment, error) {
	pieces, err := f.Groups.Mapping(group, volume)
	if !f.armed.CompareAndSwap(true, false) {
		return pieces, err
	}
	t := f.d.t
	f.d.machine.moveAway(t, volume)
	waittest.Until(t, "lvmd has noticed", func() bool {
		now, err := f.d.machine.fake.Metadata(group)
		return err == nil && f.d.groups.Named(group).Known().Seqno == now.Seqno
	})
	return pieces, err
}

// moveAway moves a volume of half the group, and reuses its former place.
func (m *machine) moveAway(t *testing.T, volume string) {
	if err := m.fake.Move(testGroup, volume); err != nil {
		t.Error(err)
	}
	if err := m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: testTotal / 2}); err != nil {
		t.Error(err)
	}
	m.fill(t, "theirs", 0x77)
	if err := m.fake.Remove(t.Context(), testGroup, []string{"theirs"}); err != nil {
		t.Error(err)
	}
}

// The volume moves after lvmd recorded its zeroes, and lvmd sees the change before it removes
// the volume.
func TestWhereAWipedVolumeWasThatWaitsForItsRemovalIsNotKnownToBeZero(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", testTotal/2))
	m.fill(t, v.GetId(), 0x5a)
	var moved atomic.Bool
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op != lvmfake.OpRemove || !moved.CompareAndSwap(false, true) {
			return nil
		}
		m.moveAway(t, v.GetId())
		return errors.New("no")
	}
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	d.traces(d.create(request("b", testTotal)).GetId())
}

func TestWhereAWipedVolumeWasBeforeItWasMovedIsNotKnownToBeZero(t *testing.T) {
	m := newMachine(t)
	lvm := &meddler{}
	d := m.start(t, func(d *daemon, o *Options) { lvm.Groups, lvm.d, o.LVM = o.LVM, d, lvm })
	v := d.create(request("a", testTotal/2))
	m.fill(t, v.GetId(), 0x5a)
	lvm.armed.Store(true)
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	d.traces(d.create(request("b", testTotal)).GetId())
}
