//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAnExpandedVolumeHasItsSizeAndNoMoreThanTheFreeSpace(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 2))
	expand := func(extents, limit int64) (*lvmdv1.ExpandVolumeResponse, error) {
		return d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{
			Id: v.GetId(), RequiredBytes: extents * testExtent, LimitBytes: limit,
		})
	}
	resp, err := expand(5, 0)
	if err != nil || resp.GetVolume().GetSizeBytes() != 5*testExtent {
		t.Errorf("%v, error %v", resp, err)
	}
	commands := m.fake.Commands(lvmfake.OpExtend)
	if resp, err = expand(3, 0); err != nil || resp.GetVolume().GetSizeBytes() != 5*testExtent {
		t.Errorf("no more than it has: %v, error %v", resp, err)
	}
	if m.fake.Commands(lvmfake.OpExtend) != commands {
		t.Error("a command was run for nothing")
	}
	// The first never fits the group, the second would without the other volume.
	_, err = expand(testTotal+1, 0)
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	if size := quantity.Bytes(testTotal * testExtent); !strings.HasSuffix(status.Convert(err).Message(), size) {
		t.Errorf("%v, want how much the class has, %s", err, size)
	}
	other := d.create(request("pvc-other", 1))
	_, err = expand(testTotal, 0)
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	d.delete(other.GetId())
	waittest.Until(t, "the other volume's space is free", func() bool { return d.available() == testTotal-5 })
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{
		Id: v.GetId(), RequiredBytes: 6*testExtent + 1, LimitBytes: 6*testExtent + 2})
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: spec.NewVolumeID(), RequiredBytes: 1})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	if resp, err = expand(testTotal, 0); err != nil || d.available() != 0 {
		t.Errorf("to the last extent: %v, error %v", resp, err)
	}
	if again := d.create(request("pvc-1", 2)); again.GetId() != v.GetId() {
		t.Errorf("%v", again)
	}
	d.checkModel()
}

type growthWatch struct {
	toVolume atomic.Int64
	toOthers atomic.Int64
}

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

// The new extents must be zeroed.
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
			crashed := d.gate.crashNext(point)
			go d.client.ExpandVolume(t.Context(), expandRequest(v.GetId(), 8))
			<-crashed
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

// Zeroing the new extents takes long.
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

// After LVM refused a larger size, the old size is requested.
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
