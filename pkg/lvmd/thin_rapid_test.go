//go:build !kernel

package lvmd

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAnySequenceOfThinCallsKeepsItsInvariants(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		h := &thinHistory{t: t, size: 10, volumes: map[string]*thinVolume{}, snapshots: map[string]*thinVolume{}}
		h.ratio = rapid.SampledFrom([]int64{100, 150, 400}).Draw(r, "overprovisioning")
		h.threshold = rapid.SampledFrom([]int64{50, 80, 100}).Draw(r, "threshold")
		h.machine = thinMachine(t, fmt.Sprintf("size: 40Mi, overprovisioning: %d%%, dataThreshold: %d%%", h.ratio, h.threshold))
		h.daemon = h.machine.start(t)
		defer func() { h.daemon.stop() }()
		r.Repeat(map[string]func(*rapid.T){
			"":         h.check,
			"create":   h.create,
			"write":    h.write,
			"expand":   h.expand,
			"delete":   h.delete,
			"snapshot": h.snapshot,
			"forget":   h.forget,
			"restore":  h.restore,
			"restart":  h.restart,
			"maximum":  h.maximum,
		})
	})
}

type thinHistory struct {
	t                      *testing.T
	machine                *machine
	daemon                 *daemon
	size, ratio, threshold int64
	volumes, snapshots     map[string]*thinVolume // by name
	next                   int
}

// contents is the pattern in each extent.
type thinVolume struct {
	id       string
	contents []byte
}

func (h *thinHistory) name(kind string) string {
	h.next++
	return fmt.Sprintf("%s-%d", kind, h.next)
}

func (h *thinHistory) pick(r *rapid.T, of map[string]*thinVolume) string {
	if len(of) == 0 {
		r.Skip("there are none")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(of))).Draw(r, "name")
}

// finished also waits until the pool's use is known, and compares the free space with the
// definition.
func (h *thinHistory) finished(r *rapid.T) int64 {
	h.daemon.t = h.t
	waittest.Until(h.t, "nothing is under way", h.daemon.isIdle)
	h.daemon.checkModel()
	for _, p := range h.daemon.inventory.Pools(nil) {
		h.daemon.pools.look(p)
	}
	s := must.Get(h.machine.fake.PoolStatus(testGroup, "pool"))(r)
	var sum int64
	for _, v := range h.volumes {
		sum += int64(len(v.contents))
	}
	for _, v := range h.snapshots {
		sum += int64(len(v.contents))
	}
	want := int64(0)
	if s.DataUsed < s.DataTotal {
		left := max(0, s.DataTotal*h.threshold/100-s.DataUsed) * h.size / s.DataTotal
		want = max(0, min(h.size*h.ratio/100-sum, max(h.size-sum, left*h.ratio/100)))
	}
	if got := h.daemon.available(); got != want {
		r.Fatalf("%d extents are available, want %d: %d in sum, pool %+v", got, want, sum, s)
	}
	return want
}

func (h *thinHistory) outcome(r *rapid.T, fits bool, err error) bool {
	if fits != (err == nil) || err != nil && !refusesSize(err) {
		r.Fatalf("it fits: %v; error %v", fits, err)
	}
	return err == nil
}

func (h *thinHistory) create(r *rapid.T) {
	free := h.finished(r)
	n := rapid.Int64Range(1, 8).Draw(r, "extents")
	name := h.name("v")
	resp, err := h.daemon.client.CreateVolume(h.t.Context(), request(name, n))
	if h.outcome(r, n <= free, err) {
		h.volumes[name] = &thinVolume{resp.GetVolume().GetId(), make([]byte, n)}
	}
}

func (h *thinHistory) write(r *rapid.T) {
	v := h.volumes[h.pick(r, h.volumes)]
	if s, err := h.machine.fake.PoolStatus(testGroup, "pool"); err != nil || s.DataTotal-s.DataUsed < testExtent/(64<<10) {
		r.Skip("the pool is nearly full")
	}
	at := rapid.IntRange(0, len(v.contents)-1).Draw(r, "extent")
	pattern := byte(rapid.IntRange(1, 255).Draw(r, "pattern"))
	handle := must.Get(h.machine.fake.Open(testGroup, v.id))(r)
	defer handle.Close()
	b := make([]byte, testExtent)
	for i := range b {
		b[i] = pattern
	}
	must.Get(handle.WriteAt(b, int64(at)*testExtent))(r)
	v.contents[at] = pattern
}

func (h *thinHistory) expand(r *rapid.T) {
	v := h.volumes[h.pick(r, h.volumes)]
	free := h.finished(r)
	more := rapid.Int64Range(1, 4).Draw(r, "extents more")
	size := int64(len(v.contents)) + more
	_, err := h.daemon.client.ExpandVolume(h.t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.id, RequiredBytes: size * testExtent})
	if h.outcome(r, more <= free, err) {
		v.contents = append(v.contents, make([]byte, more)...)
	}
}

func (h *thinHistory) delete(r *rapid.T) {
	name := h.pick(r, h.volumes)
	h.daemon.t = h.t
	h.daemon.delete(h.volumes[name].id)
	delete(h.volumes, name)
}

func (h *thinHistory) snapshot(r *rapid.T) {
	source := h.volumes[h.pick(r, h.volumes)]
	free := h.finished(r)
	name := h.name("s")
	resp, err := h.daemon.client.CreateSnapshot(h.t.Context(), &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: source.id})
	if h.outcome(r, int64(len(source.contents)) <= free, err) {
		h.snapshots[name] = &thinVolume{resp.GetSnapshot().GetId(), slices.Clone(source.contents)}
	}
}

func (h *thinHistory) forget(r *rapid.T) {
	name := h.pick(r, h.snapshots)
	h.daemon.t = h.t
	h.daemon.deleteSnapshot(h.snapshots[name].id)
	delete(h.snapshots, name)
}

func (h *thinHistory) restore(r *rapid.T) {
	all := maps.Clone(h.snapshots)
	maps.Copy(all, h.volumes)
	source := all[h.pick(r, all)]
	free := h.finished(r)
	n := int64(len(source.contents)) + rapid.Int64Range(0, 2).Draw(r, "extents more")
	name := h.name("v")
	ask := from(request(name, n), source.id)
	resp, err := h.daemon.client.CreateVolume(h.t.Context(), ask)
	if !h.outcome(r, n <= free, err) {
		return
	}
	contents := make([]byte, n)
	copy(contents, source.contents)
	h.volumes[name] = &thinVolume{resp.GetVolume().GetId(), contents}
	again, err := h.daemon.client.CreateVolume(h.t.Context(), ask)
	if err != nil || again.GetVolume().GetId() != resp.GetVolume().GetId() {
		r.Fatalf("a retry gives %v, error %v", again, err)
	}
}

func (h *thinHistory) restart(r *rapid.T) {
	how := rapid.SampledFrom([]string{"stop", "kill", "reboot", "stop and lose the journal"}).Draw(r, "how")
	switch how {
	case "kill", "reboot":
		h.daemon.kill()
	default:
		h.daemon.t = h.t
		waittest.Until(h.t, "nothing is under way", h.daemon.isIdle)
		h.daemon.stop()
	}
	switch how {
	case "reboot":
		h.machine.fake.Deactivate()
	case "stop and lose the journal":
		h.machine.loseJournal(h.t)
	}
	h.daemon = h.machine.start(h.t)
}

func (h *thinHistory) maximum(r *rapid.T) {
	free := h.finished(r)
	if _, err := h.daemon.client.CreateVolume(h.t.Context(), request("maximum", free+1)); status.Code(err) != codes.ResourceExhausted {
		r.Fatalf("one extent more than %d: %v", free, err)
	}
	if free == 0 {
		return
	}
	resp, err := h.daemon.client.CreateVolume(h.t.Context(), request("maximum", free))
	if err != nil {
		r.Fatalf("%d extents: %v", free, err)
	}
	h.daemon.delete(resp.GetVolume().GetId())
}

func (h *thinHistory) check(r *rapid.T) {
	h.daemon.t = h.t
	listed := map[string]*lvmdv1.Volume{}
	for _, v := range h.daemon.list() {
		listed[v.GetName()] = v
	}
	for name, v := range h.volumes {
		got := listed[name]
		if got.GetId() != v.id || got.GetSizeBytes() != int64(len(v.contents))*testExtent || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
			r.Fatalf("volume %s of %d extents is reported as %v", name, len(v.contents), got)
		}
		h.holds(r, v)
	}
	snapshots, err := h.daemon.client.ListSnapshots(h.t.Context(), &lvmdv1.ListSnapshotsRequest{})
	if err != nil || len(snapshots.GetSnapshots()) != len(h.snapshots) || len(listed) != len(h.volumes) {
		r.Fatalf("%d volumes and %d snapshots are reported, %d and %d should be; error %v",
			len(listed), len(snapshots.GetSnapshots()), len(h.volumes), len(h.snapshots), err)
	}
	if h.t.Failed() {
		r.FailNow()
	}
}

// holds checks the first block of each extent.
func (h *thinHistory) holds(r *rapid.T, v *thinVolume) {
	handle := must.Get(h.machine.fake.Open(testGroup, v.id))(r)
	defer handle.Close()
	b := make([]byte, 4096)
	for i, want := range v.contents {
		if _, err := handle.ReadAt(b, int64(i)*testExtent); err != nil || b[0] != want {
			r.Fatalf("extent %d of %s shows %#x, want %#x; error %v", i, v.id, b[0], want, err)
		}
	}
}
