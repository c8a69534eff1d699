//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (m *mirror) resume(ctx context.Context, d *daemon) grpcStream {
	d.t.Helper()
	w := must.Get(d.client.Watch(ctx, &lvmdv1.WatchRequest{Epoch: m.epoch, Generation: m.generation}))(d.t)
	return w
}

type grpcStream interface {
	Recv() (*lvmdv1.WatchResponse, error)
}

func (d *daemon) first(epoch string, generation uint64) *lvmdv1.WatchResponse {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	r := must.Get((&mirror{epoch: epoch, generation: generation}).resume(ctx, d).Recv())(d.t)
	return r
}

func TestAResumedStreamBeginsWithWhatChangedMeanwhile(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("second", testExtent, testTotal)
	m.config += "- {name: other, volumeGroup: second}\n"
	d := m.start(t)
	kept, grown, gone := d.create(request("kept", 1)), d.create(request("grown", 1)), d.create(request("gone", 1))
	before := d.state()
	if r := d.first(before.GetEpoch(), before.GetGeneration()); r.GetFull() || r.GetGeneration() != before.GetGeneration() ||
		len(r.GetVolumes())+len(r.GetRemovedVolumeIds())+len(r.GetClasses()) != 0 {
		t.Errorf("nothing happened, message %v", r)
	}
	must.Get(d.client.ExpandVolume(t.Context(), expandRequest(grown.GetId(), 3)))(t)
	made := d.create(request("made", 1))
	d.delete(gone.GetId())
	short := d.create(request("short", 1))
	d.delete(short.GetId())
	waittest.Until(t, "all is removed", func() bool { return d.available() == testTotal-5 })
	r := d.first(before.GetEpoch(), before.GetGeneration())
	changed := map[string]int64{}
	for _, v := range r.GetVolumes() {
		changed[v.GetId()] = v.GetSizeBytes() / testExtent
	}
	if want := map[string]int64{grown.GetId(): 3, made.GetId(): 1}; !maps.Equal(changed, want) {
		t.Errorf("changed volumes %v, want %v (not %s)", changed, want, kept.GetId())
	}
	removed, want := slices.Sorted(slices.Values(r.GetRemovedVolumeIds())), []string{gone.GetId(), short.GetId()}
	if slices.Sort(want); !slices.Equal(removed, want) {
		t.Errorf("removed volumes %v, want %v", removed, want)
	}
	if r.GetFull() || len(r.GetClasses()) != 1 || r.GetClasses()[0].GetName() != "local" {
		t.Errorf("full %v, classes %v, want that of the group that changed", r.GetFull(), r.GetClasses())
	}
}

func TestAStreamThatCannotBeResumedBeginsWithTheFullState(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	d.create(request("a", 1))
	before := d.state()
	must.Succeed(t, d.Reload(parse(t, oneClass)))
	reloaded := d.state()
	for _, c := range []struct {
		name       string
		epoch      string
		generation uint64
		full       bool
	}{
		{"as it is", reloaded.GetEpoch(), reloaded.GetGeneration(), false},
		{"before another configuration", before.GetEpoch(), before.GetGeneration(), true},
		{"of the future", reloaded.GetEpoch(), reloaded.GetGeneration() + 1, true},
		{"of another run", "another", reloaded.GetGeneration(), true},
		{"of no run", "", reloaded.GetGeneration(), true},
	} {
		if r := d.first(c.epoch, c.generation); r.GetFull() != c.full || c.full && (len(r.GetVolumes()) != 1 || len(r.GetClasses()) != 1) {
			t.Errorf("%s: message %v, want full %v", c.name, r, c.full)
		}
	}
	d.stop()
	d = m.start(t)
	if r := d.first(reloaded.GetEpoch(), reloaded.GetGeneration()); !r.GetFull() || r.GetEpoch() == reloaded.GetEpoch() {
		t.Errorf("after a restart: message %v, want the full state of another epoch", r)
	}
}

func TestAWatcherThatResumesAtRandomSeesWhatIsThere(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		m := newMachine(t)
		m.fake.AddGroup("second", testExtent, testTotal)
		configs := []string{
			oneClass + "- {name: other, volumeGroup: second, optional: true}\n",
			oneClass + "- {name: other, volumeGroup: second, optional: true, reserve: 10Mi}\n- {name: third, volumeGroup: second}\n",
		}
		m.config = configs[0]
		d := m.start(t)
		defer func() { d.stop() }()
		var seen mirror
		var stream grpcStream
		breakOff := func() {}
		defer func() { breakOff() }()
		receive := func() {
			if stream == nil {
				ctx, cancel := context.WithCancel(t.Context())
				stream, breakOff = seen.resume(ctx, d), cancel
				seen.resumed = true
			}
			message := must.Get(stream.Recv())(r)
			seen.take(t, message)
		}
		ids, plugged := []string{}, true
		for i := range rapid.IntRange(5, 40).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"create", "create", "expand", "delete", "delete", "break", "break", "read", "reload", "plug", "restart"}).Draw(r, "what") {
			case "create":
				class := "local"
				if plugged && rapid.Bool().Draw(r, "other") {
					class = "other"
				}
				resp, err := d.client.CreateVolume(t.Context(), inClass(request(fmt.Sprintf("pvc-%d", i), 1), class))
				if err == nil {
					ids = append(ids, resp.GetVolume().GetId())
				}
			case "expand":
				if len(ids) > 0 {
					// It may fail while the group is away.
					_, _ = d.client.ExpandVolume(t.Context(), expandRequest(rapid.SampledFrom(ids).Draw(r, "volume"), 2))
				}
			case "delete":
				if len(ids) > 0 {
					id := rapid.SampledFrom(ids).Draw(r, "volume")
					_, _ = d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id})
				}
			case "break":
				breakOff()
				stream = nil
			case "read":
				if stream == nil {
					receive()
				}
			case "reload":
				// It may be rejected or need a start.
				_ = d.Reload(parse(t, rapid.SampledFrom(configs).Draw(r, "configuration")))
			case "plug":
				plugged = !plugged
				m.fake.PlugGroup("second", plugged)
			case "restart":
				breakOff()
				stream = nil
				d.stop()
				d = m.start(t)
			}
		}
		if !plugged {
			m.fake.PlugGroup("second", true)
		}
		breakOff()
		stream = nil
		receive()
		var now *lvmdv1.WatchResponse
		waittest.Until(t, "nothing is under way, and the reader has the last word", func() bool {
			now = d.state()
			for seen.epoch != now.GetEpoch() || seen.generation < now.GetGeneration() {
				receive()
			}
			return d.isIdle() && seen.generation == now.GetGeneration()
		})
		if len(seen.volumes) != len(now.GetVolumes()) || len(seen.classes) != len(now.GetClasses()) {
			r.Errorf("seen are %d volumes and %d classes, there are %d and %d", len(seen.volumes), len(seen.classes), len(now.GetVolumes()), len(now.GetClasses()))
		}
		for _, v := range now.GetVolumes() {
			if !proto.Equal(v, seen.volumes[v.GetId()]) {
				r.Errorf("seen is %v, want %v", seen.volumes[v.GetId()], v)
			}
		}
		for _, c := range now.GetClasses() {
			if !proto.Equal(c, seen.classes[c.GetName()]) {
				r.Errorf("seen is %v, want %v", seen.classes[c.GetName()], c)
			}
		}
	})
}
