//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type mirror struct {
	epoch      string
	generation uint64
	volumes    map[string]*lvmdv1.Volume
	classes    map[string]*lvmdv1.DeviceClass
	// resumed is true until the first message of a resumed stream.
	resumed bool
}

func (m *mirror) take(t *testing.T, r *lvmdv1.WatchResponse) {
	t.Helper()
	if m.volumes == nil || r.GetFull() {
		if !r.GetFull() {
			t.Fatal("the first message is not the full state")
		}
		m.volumes, m.classes = map[string]*lvmdv1.Volume{}, map[string]*lvmdv1.DeviceClass{}
	} else if r.GetEpoch() != m.epoch || r.GetGeneration() < m.generation || r.GetGeneration() == m.generation && !m.resumed {
		t.Errorf("epoch %s, generation %d after %s, %d", r.GetEpoch(), r.GetGeneration(), m.epoch, m.generation)
	}
	m.epoch, m.generation, m.resumed = r.GetEpoch(), r.GetGeneration(), false
	for _, v := range r.GetVolumes() {
		m.volumes[v.GetId()] = v
	}
	for _, id := range r.GetRemovedVolumeIds() {
		delete(m.volumes, id)
	}
	for _, c := range r.GetClasses() {
		m.classes[c.GetName()] = c
	}
	for _, name := range r.GetRemovedClasses() {
		delete(m.classes, name)
	}
}

func (m *mirror) bytes() int64 {
	var n int64
	for _, v := range m.volumes {
		n += v.GetSizeBytes()
	}
	return n
}

func (d *daemon) watch(ctx context.Context) grpc.ServerStreamingClient[lvmdv1.WatchResponse] {
	d.t.Helper()
	w := must.Get(d.client.Watch(ctx, &lvmdv1.WatchRequest{}))(d.t)
	return w
}

func TestAVolumeAndTheSpaceItTookArriveTogether(t *testing.T) {
	d := newMachine(t).start(t)
	// Zeroed space needs no extension, which no watcher sees.
	d.delete(d.create(request("first", testTotal)).GetId())
	waittest.Until(t, "all space is known to be zero", func() bool { return d.available() == testTotal })
	w := d.watch(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() {
		for i := range 20 {
			v := d.create(request(fmt.Sprintf("pvc-%d", i), 1))
			if i%3 == 0 {
				if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 3 * testExtent}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	var m mirror
	for m.bytes() != (20+2*7)*testExtent {
		r := must.Get(w.Recv())(t)
		m.take(t, r)
		if free := m.classes["local"].GetAvailableBytes(); free+m.bytes() != testTotal*testExtent {
			t.Errorf("at generation %d: %d available and %d in volumes", m.generation, free, m.bytes())
		}
	}
}

func TestASlowReaderGetsWhatIsNowNotWhatWas(t *testing.T) {
	d := newMachine(t).start(t)
	w := d.inventory.Watch("", 0)
	defer w.End()
	var m mirror
	<-w.Wake()
	m.take(t, w.Next())
	kept := d.create(request("kept", 2))
	for i := range 10 {
		d.delete(d.create(request(fmt.Sprintf("gone-%d", i), 1)).GetId())
	}
	waittest.Until(t, "all is removed", func() bool { return d.available() == testTotal-2 })
	<-w.Wake()
	r := w.Next()
	if r.GetFull() || len(r.GetVolumes()) != 1 || r.GetVolumes()[0].GetId() != kept.GetId() || len(r.GetClasses()) != 1 {
		t.Errorf("message %v", r)
	}
	m.take(t, r)
	if m.bytes() != 2*testExtent || m.classes["local"].GetAvailableBytes() != (testTotal-2)*testExtent {
		t.Errorf("mirror %v", m)
	}
}

func TestNothingIsSentWhileNothingHappens(t *testing.T) {
	d := newMachine(t).start(t)
	w := d.watch(t.Context())
	must.Get(w.Recv())(t)
	for range 10 {
		d.groups.Refresh(t.Context(), d.groups.Named(testGroup))
	}
	d.create(request("pvc-1", 1))
	if r, err := w.Recv(); err != nil || len(r.GetVolumes()) != 1 {
		t.Errorf("message %v, error %v, want that of the volume", r, err)
	}
}

func TestEachRunOfLvmdHasItsEpoch(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	first := d.state()
	d.stop()
	second := m.start(t).state()
	if first.GetEpoch() == second.GetEpoch() || len(second.GetVolumes()) != 1 || second.GetVolumes()[0].GetId() != v.GetId() {
		t.Errorf("first %v, second %v", first, second)
	}
}

func TestStoppingEndsStreamsAndRefusesWork(t *testing.T) {
	d := newMachine(t).start(t)
	w := d.watch(t.Context())
	must.Get(w.Recv())(t)
	d.Quiesce()
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
	_, err := d.client.CreateVolume(t.Context(), request("pvc-1", 1))
	wantCode(t, err, codes.Unavailable, "")
	if d.Ready(t.Context()) == nil {
		t.Error("still ready")
	}
}
