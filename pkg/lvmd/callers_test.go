//go:build !kernel

package lvmd

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestACreateThatNoCallerWaitsForIsUndone(t *testing.T) {
	m := newMachine(t)
	formatting := make(chan struct{})
	m.formatHook = func(ctx context.Context, _ string) error {
		close(formatting)
		<-ctx.Done()
		return ctx.Err()
	}
	d := m.start(t, func(_ *daemon, o *Options) { o.callerGrace = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		result <- err
	}()
	<-formatting
	if v := d.list(); len(v) != 1 || v[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
		t.Errorf("while being created: %v", v)
	}
	cancel()
	wantCode(t, <-result, codes.Canceled, "")
	d.checkClean()
	m.formatHook = nil
	waittest.Until(t, "the name is free again", func() bool {
		_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		return err == nil
	})
}

// abandonedCreate returns a daemon that is formatting "pvc-1", whose caller has gone. Closing
// goOn ends the formatting.
func abandonedCreate(t *testing.T) (d *daemon, goOn chan struct{}) {
	t.Helper()
	m := newMachine(t)
	formatting, goOn := make(chan struct{}, 2), make(chan struct{})
	m.formatHook = func(ctx context.Context, _ string) error {
		formatting <- struct{}{}
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	d = m.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		result <- err
	}()
	<-formatting
	cancel()
	wantCode(t, <-result, codes.Canceled, "")
	waittest.Until(t, "the caller has gone", func() bool {
		v := d.inspect("pvc-1")
		return v.Callers == 0 && v.Abandoned
	})
	return d, goOn
}

// The next leader repeats the requests of one that ended.
func TestTheNextCallerJoinsACreationWhoseCallerHasGone(t *testing.T) {
	d, goOn := abandonedCreate(t)
	id := d.list()[0].GetId()
	second := make(chan string, 1)
	go func() {
		made, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		if err != nil {
			t.Error(err)
		}
		second <- made.GetVolume().GetId()
	}()
	waittest.Until(t, "the second caller has joined", func() bool {
		v := d.inspect("pvc-1")
		return v.Callers == 1 && !v.Abandoned
	})
	close(goOn)
	if got := <-second; got != id {
		t.Errorf("the second caller got volume %q, want %q, which the first asked for", got, id)
	}
	d.delete(id)
	d.checkClean()
}

func TestADeletionCancelsACreationWhoseCallerHasGone(t *testing.T) {
	d, _ := abandonedCreate(t)
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.Aborted, "OPERATION_PENDING")
	waittest.Until(t, "it is deleted", func() bool {
		_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
		return err == nil && len(d.list()) == 0
	})
	d.checkClean()
}

func TestACallerThatLeavesDoesNotEndTheCreationOfAnother(t *testing.T) {
	m := newMachine(t)
	formatting, goOn := make(chan struct{}), make(chan struct{})
	m.formatHook = func(context.Context, string) error {
		close(formatting)
		<-goOn
		return nil
	}
	d := m.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		first <- err
	}()
	<-formatting
	go func() {
		_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		second <- err
	}()
	waittest.Until(t, "the second caller has joined", func() bool {
		return d.inspect("pvc-1").Callers == 2
	})
	cancel()
	wantCode(t, <-first, codes.Canceled, "")
	close(goOn)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// Clearing may take longer than any caller waits.
func TestClearingGoesOnWithoutACaller(t *testing.T) {
	m := newMachine(t)
	clearing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.fake.BeforeZero = func(_, _ string, off, _ int64) error {
		if off == reclaim.WipeChunk {
			once.Do(func() { close(clearing) })
			<-goOn
		}
		return nil
	}
	d := m.start(t, func(_ *daemon, o *Options) { o.callerGrace = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, request("pvc-1", 32))
		result <- err
	}()
	<-clearing
	cancel()
	wantCode(t, <-result, codes.Canceled, "")
	v, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "pvc-1"})
	if v.GetVolume().GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING || v.GetVolume().GetCopiedBytes() != reclaim.WipeChunk {
		t.Errorf("while it is cleared: %v, error %v", v, err)
	}
	time.Sleep(20 * time.Millisecond) // more than the grace
	close(goOn)
	waittest.Until(t, "the volume is ready", func() bool {
		v := d.list()
		return len(v) == 1 && v[0].GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY && v[0].GetCopiedBytes() == 0
	})
}
