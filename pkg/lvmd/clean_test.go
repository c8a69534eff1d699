//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// policies has a class that is wiped and two that may not be, in one group.
const policies = `
- name: local
  default: true
  volumeGroup: carve
- name: careless
  volumeGroup: carve
  wipe: none
- name: discarding
  volumeGroup: carve
  wipe: discard
`

// traces fails the test when a volume shows what it was not given.
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

// zeroed counts the bytes that are zeroed from here on.
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
		// before leaves something on the disk that lvmd did not wipe.
		before func(t *testing.T, m *machine, d *daemon) *daemon
	}{
		{"in the disk's first run with us", func(t *testing.T, m *machine, d *daemon) *daemon {
			d.stop()
			m.dirty(t)
			os.RemoveAll(filepath.Join(m.state, "journal.db"))
			return m.start(t)
		}},
		{"when a volume was removed behind our back", func(t *testing.T, m *machine, d *daemon) *daemon {
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
			died := d.gate.dieNext("delete: tombstone written")
			go d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			<-died
			d.kill()
			os.RemoveAll(filepath.Join(m.state, "journal.db"))
			d = m.start(t)
			// It is a volume again, and nothing of it was lost.
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

// uses has all of the disk be used by a volume of a class, and given back.
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

// dirty uses all of the disk, and gives it back, as another program would.
func (m *machine) dirty(t *testing.T) {
	t.Helper()
	m.dirtyFree(t, testTotal)
}

// dirtyFree uses so many extents, and gives them back.
func (m *machine) dirtyFree(t *testing.T, extents int64) {
	t.Helper()
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "theirs", Extents: extents}))
	m.fill(t, "theirs", 0x77)
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"theirs"}))
}

// TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten has the disk used and given back by
// another program, of which no scan knows, after lvmd wiped all of it.
func TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, blind)
	v := d.create(request("wiped", testTotal))
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	v = d.create(request("grows", 2))
	m.dirtyFree(t, testTotal-2)
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}))(t)
	d.traces(v.GetId())
}

// TestARawVolumeDoesNotGrowIntoWhatAnotherProgramHadInBetween has the disk used and given back
// between the two commands that give an extension's extents to a volume.
func TestARawVolumeDoesNotGrowIntoWhatAnotherProgramHadInBetween(t *testing.T) {
	m := newMachine(t)
	var once sync.Once
	d := m.start(t, blind, func(d *daemon, o *Options) {
		o.crashPoint = func(at string) {
			if at == "expand: extension removed" {
				once.Do(func() { m.dirtyFree(t, testTotal-2) })
			}
			d.gate.pass(at)
		}
	})
	v := d.create(request("grows", 2))
	grow := &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}
	_, err := d.client.ExpandVolume(t.Context(), grow)
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	must.Get(d.client.ExpandVolume(t.Context(), grow))(t)
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

// growthWatch counts what lvmd zeroes while a volume grows.
type growthWatch struct {
	// toVolume counts the bytes that lvmd wrote to the volume itself.
	toVolume atomic.Int64
	// toOthers counts those that it wrote to other volumes.
	toOthers atomic.Int64
}

// watchGrowth counts what lvmd zeroes of a volume, and of others.
func (m *machine) watchGrowth(id string) *growthWatch {
	w := &growthWatch{}
	m.fake.BeforeZero = func(_, volume string, _, length int64) error {
		if volume == id {
			w.toVolume.Add(length)
		} else {
			w.toOthers.Add(length)
		}
		return nil
	}
	return w
}

// TestAnExpansionThatWasKilledLeavesNothingBehind kills lvmd at every step of an expansion
// whose new extents must be zeroed.
func TestAnExpansionThatWasKilledLeavesNothingBehind(t *testing.T) {
	for _, point := range []string{
		"expand: admitted", "expand: extension made", "expand: extension zeroed", "expand: extension removed", "expand: grown",
	} {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.dirty(t)
			d := m.start(t)
			v := d.create(request("a", 4))
			w := m.watchGrowth(v.GetId())
			died := d.gate.dieNext(point)
			go d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
			<-died
			d.kill()
			d = m.start(t)
			want := int64(4)
			if point == "expand: grown" {
				want = 8
			}
			waittest.Until(t, "only the volume takes space", func() bool { return d.available() == testTotal-want })
			if volumes, err := m.fake.Scan(t.Context(), []string{testGroup}); err != nil || len(volumes[0].Volumes) != 1 {
				t.Errorf("volumes: %+v, error %v; want one", volumes, err)
			}
			got, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
			if err != nil || got.GetVolume().GetSizeBytes() != 8*testExtent {
				t.Errorf("the same expansion again: %v, error %v", got, err)
			}
			d.traces(v.GetId())
			if n := w.toVolume.Load(); n != 0 {
				t.Errorf("%d bytes were written to the volume, which its user sees", n)
			}
		})
	}
}

// TestAnExpansionOutlivesItsCallers has the caller of an expansion leave while the new extents
// are zeroed, and another one come.
func TestAnExpansionOutlivesItsCallers(t *testing.T) {
	m := newMachine(t)
	m.dirty(t)
	d := m.start(t)
	v := d.create(request("a", 4))
	zeroing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var zeroed atomic.Int64
	m.fake.BeforeZero = func(_, _ string, _, length int64) error {
		once.Do(func() { close(zeroing); <-proceed })
		zeroed.Add(length)
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := d.client.ExpandVolume(ctx, expandRequest(v.GetId(), 8))
		left <- err
	}()
	<-zeroing
	cancel()
	if err := <-left; status.Code(err) != codes.Canceled {
		t.Errorf("the caller who left: %v", err)
	}
	t.Run("an expansion to the size that the volume has changes nothing", func(t *testing.T) {
		got, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 4))
		if err != nil || got.GetVolume().GetSizeBytes() != 4*testExtent {
			t.Errorf("got %v, error %v; want 4 extents", got, err)
		}
	})
	t.Run("an expansion to another size waits", func(t *testing.T) {
		if _, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 9)); status.Code(err) != codes.Aborted {
			t.Errorf("error %v, want Aborted", err)
		}
	})
	joined := make(chan error, 1)
	go func() {
		_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
		joined <- err
	}()
	close(proceed)
	if err := <-joined; err != nil {
		t.Error("the caller who came later:", err)
	}
	if n := zeroed.Load(); n != 4*testExtent {
		t.Errorf("%d bytes were zeroed, want %d", n, 4*testExtent)
	}
	d.traces(v.GetId())
}

// TestADeletionCancelsAnExpansion deletes a volume whose new extents take long to zero.
func TestADeletionCancelsAnExpansion(t *testing.T) {
	m := newMachine(t)
	m.dirty(t)
	d := m.start(t)
	v := d.create(request("a", 4))
	zeroing, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.fake.BeforeZero = func(_, _ string, _, _ int64) error {
		once.Do(func() { close(zeroing); <-proceed })
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		_, err := d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), testTotal))
		ended <- err
	}()
	<-zeroing
	remove := func() error {
		_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		return err
	}
	if err := remove(); status.Code(err) != codes.Aborted {
		t.Errorf("the deletion: %v, want Aborted", err)
	}
	close(proceed)
	if err := <-ended; err == nil {
		t.Error("the expansion succeeded, want it cancelled")
	}
	waittest.Until(t, "the volume is deleted", func() bool { return remove() == nil })
	waittest.Until(t, "all space is back", func() bool { return d.available() == testTotal })
}

// meddler is an LVM that an administrator uses, too: when lvmd has seen where a wiped volume
// lies, the volume is moved, and where it was, another one is written and removed.
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
		return err == nil && f.d.groups.Named(group).Seqno() == now.Seqno
	})
	return pieces, err
}

// moveAway moves a volume of half the group; where it was, another one is written and removed.
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

// The volume is moved after lvmd has noted where the zeroes are, and lvmd sees the change
// before it removes the volume.
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

// TestAnExpansionThatFailedLeavesTheVolumeFree asks for the old size after LVM refused a
// larger one.
func TestAnExpansionThatFailedLeavesTheVolumeFree(t *testing.T) {
	m := newMachine(t)
	m.dirty(t)
	d := m.start(t)
	v := d.create(request("a", 4))
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtend {
			return errors.New("no")
		}
		return nil
	}
	expand := func(extents int64) error {
		_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: extents * testExtent})
		return err
	}
	if err := expand(8); err == nil {
		t.Error("the expansion that LVM refuses: want an error")
	}
	for range 2 {
		if err := expand(4); err != nil {
			t.Errorf("an expansion to the size that it has: %v", err)
		}
	}
	d.delete(v.GetId())
	waittest.Until(t, "all space is back", func() bool { return d.available() == testTotal })
}

// TestAWipeThatWasKilledGoesOnWhereTheJournalSays kills lvmd when two chunks of four
// are wiped, of which the journal knows one.
func TestAWipeThatWasKilledGoesOnWhereTheJournalSays(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", testTotal))
	m.fill(t, v.GetId(), 0x5a)
	m.fake.BeforeZero = func(_, _ string, off, _ int64) error {
		if off == reclaim.WipeChunk {
			d.gate.dieNext("delete: chunk wiped")
		}
		return nil
	}
	d.delete(v.GetId())
	waittest.Until(t, "it is dead", d.gate.dead.Load)
	d.kill()
	if n, _, err := m.fake.Traces(testGroup, v.GetId()); err != nil || int64(n)*4096 != testTotal*testExtent-2*reclaim.WipeChunk {
		t.Fatalf("%d blocks are left at the crash, error %v; want two chunks", n, err)
	}
	var zeroed []int64 // where
	m.fake.BeforeZero = func(_, _ string, off, _ int64) error {
		zeroed = append(zeroed, off)
		return nil
	}
	d = m.start(t, func(_ *daemon, o *Options) { o.wipeCheckpoint = 0 })
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	if want := []int64{reclaim.WipeChunk, 2 * reclaim.WipeChunk, 3 * reclaim.WipeChunk}; !slices.Equal(zeroed, want) {
		t.Errorf("zeroed at %d, want %d", zeroed, want)
	}
	all := d.create(request("b", testTotal))
	d.traces(all.GetId())
}

// TestNoGenerationSeesAnEarlierOne makes, fills, grows and deletes raw volumes
// at random while lvmd is stopped and killed, its journal lost, and an
// administrator takes and removes volumes by hand.
func TestNoGenerationSeesAnEarlierOne(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			generations(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func generations(t *testing.T, r *rand.Rand) {
	m := newMachine(t)
	m.config = policies
	d := m.start(t)
	type held struct {
		id      string
		careful bool
	}
	var volumes []held
	pattern := byte(0)
	for i := range 300 {
		switch n := r.IntN(20); {
		case n < 9:
			req := request(fmt.Sprintf("v%d", i), 1+r.Int64N(12))
			careful := r.IntN(4) > 0
			if !careful {
				req.DeviceClass = []string{"careless", "discarding"}[r.IntN(2)]
			}
			resp, err := d.client.CreateVolume(t.Context(), req)
			if err != nil {
				continue
			}
			id := resp.GetVolume().GetId()
			if careful {
				d.traces(id)
			}
			pattern++
			m.fill(t, id, pattern|0x80)
			volumes = append(volumes, held{id, careful})
		case n < 15 && len(volumes) > 0:
			k := r.IntN(len(volumes))
			d.delete(volumes[k].id)
			volumes = append(volumes[:k], volumes[k+1:]...)
		case n == 15 && len(volumes) > 0:
			k := r.IntN(len(volumes))
			if m.fake.Remove(t.Context(), testGroup, []string{volumes[k].id}) == nil {
				volumes = append(volumes[:k], volumes[k+1:]...)
			}
		case n == 16:
			name := fmt.Sprintf("theirs%d", i)
			if m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: name, Extents: 1 + r.Int64N(6)}) == nil {
				m.fill(t, name, 0x7f)
				must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{name}))
			}
		case n == 17:
			d.stop()
			d = m.start(t)
		case n == 18:
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			d.kill()
			if r.IntN(3) == 0 {
				os.RemoveAll(filepath.Join(m.state, "journal.db"))
			}
			d = m.start(t)
			// What was deleted but not wiped when the journal went is a volume
			// again: its owner deletes it again.
			known := map[string]bool{}
			for _, v := range volumes {
				known[v.id] = true
			}
			for _, v := range d.list() {
				if !known[v.GetId()] {
					d.delete(v.GetId())
				}
			}
		}
		if t.Failed() {
			t.Fatalf("at step %d", i)
		}
	}
}

func TestAClassSaysHowItsVolumesAreWiped(t *testing.T) {
	for _, c := range []struct {
		wipe  string
		clean bool
	}{{"auto", true}, {"zero", true}, {"discard", false}, {"none", false}} {
		t.Run(c.wipe, func(t *testing.T) {
			m := newMachine(t)
			m.config = "- {name: local, default: true, volumeGroup: carve, wipe: " + c.wipe + "}\n"
			d := m.start(t)
			v := d.create(request("pvc-1", 8))
			must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x77))
			d.delete(v.GetId())
			waittest.Until(t, "the space is back", func() bool { return d.available() == testTotal })
			v = d.create(request("pvc-2", 8))
			if n, _, err := m.fake.Traces(testGroup, v.GetId()); err != nil || (n == 0) != c.clean {
				t.Errorf("%d blocks of the earlier volume, error %v", n, err)
			}
		})
	}
}

func TestAClassAtItsRateHoldsUpNoOther(t *testing.T) {
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroup(testGroup, testExtent, 256)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: slow, volumeGroup: carve, wipeRate: 1Mi}\n"
	d := m.start(t)
	// Longer than a test waits.
	throttled := request("throttled", 2*int64(waittest.Limit/time.Second)*(1<<20)/testExtent)
	throttled.DeviceClass = "slow"
	first, second := d.create(throttled), d.create(request("large", 100))
	d.delete(first.GetId())
	d.delete(second.GetId())
	waittest.Until(t, "the other class' volume is gone, and the slow one is still wiped", func() bool {
		return d.available() >= 256-throttled.GetRequiredBytes()/testExtent
	})
	if got := d.available(); got == 256 {
		t.Error("the slow class' volume is gone already")
	}
}

func TestALargeVolumeIsWipedBetweenSmallOnes(t *testing.T) {
	m := newMachine(t)
	proceed := make(chan struct{})
	var deleting atomic.Bool
	var mu sync.Mutex
	var order []string
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if !deleting.Load() {
			return nil
		}
		<-proceed
		mu.Lock()
		defer mu.Unlock()
		order = append(order, volume)
		return nil
	}
	d := m.start(t)
	const small = 24
	large := d.create(request("large", 40)).GetId()
	var ids []string
	for i := range small {
		ids = append(ids, d.create(request(fmt.Sprint("small-", i), 1)).GetId())
	}
	deleting.Store(true)
	for _, id := range slices.Insert(ids, 1, large) {
		d.delete(id)
	}
	close(proceed)
	waittest.Until(t, "all space is back", func() bool { return d.available() == testTotal })
	// The first chunks may be chosen before the large volume is deleted.
	if first := slices.Index(order, large); first > 2*inventory.FairEvery {
		t.Errorf("the large volume's turn comes as number %d of %d", first, len(order))
	}
}

func TestAWipeKeepsToItsRate(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, wipeRate: 64Mi}\n"
	d := m.start(t)
	start := time.Now()
	d.delete(d.create(request("pvc-1", 8)).GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == testTotal })
	// A burst of a tenth of a second is free. It may take longer on a busy machine.
	const rate = 64 << 20
	want := time.Duration(8*testExtent*int64(time.Second)/rate) - time.Second/10
	if took := time.Since(start); took < want {
		t.Errorf("it took %v, and takes %v at its rate", took, want)
	}
	d.checkClean()
}
