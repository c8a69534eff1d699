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
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/rapidtest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// fewHistories limits the histories unless the command line sets another number.
func fewHistories(t *testing.T) {
	t.Helper()
	rapidtest.Set(t, map[string]string{"checks": "25"})
}

// After each step, acknowledged volumes exist, sizes add up, a volume of the maximum fits and
// one extent more does not, no volume shows another's data, and the inventory matches a fresh
// scan.
func TestAnySequenceOfCallsKeepsItsInvariants(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		h := &history{machine: newMachine(t), t: t, volumes: map[string]*lvmdv1.Volume{}, mounted: map[string]bool{}}
		h.reserve = rapid.Int64Range(0, 5).Draw(r, "reserve")
		h.machine.config = fmt.Sprintf("- {name: local, default: true, volumeGroup: carve, reserve: %d}\n", h.reserve*testExtent)
		h.daemon = h.machine.start(t)
		defer func() { h.daemon.stop() }()
		r.Repeat(map[string]func(*rapid.T){
			"":           h.check,
			"create":     h.create,
			"delete":     h.delete,
			"expand":     h.expand,
			"mount":      h.mount,
			"administer": h.administer,
			"restart":    h.restart,
			"maximum":    h.maximum,
		})
	})
}

type history struct {
	machine *machine
	daemon  *daemon
	t       *testing.T
	reserve int64
	volumes map[string]*lvmdv1.Volume // by name
	mounted map[string]bool           // by name
	admins  int
	next    int
}

func (h *history) pick(r *rapid.T) string {
	if len(h.volumes) == 0 {
		r.Skip("there are no volumes")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(h.volumes))).Draw(r, "volume")
}

// finished waits for wipes and removals, and returns the free space.
func (h *history) finished() int64 {
	h.daemon.t = h.t
	waittest.Until(h.t, "nothing is under way", h.daemon.isIdle)
	h.daemon.checkModel()
	return h.daemon.available()
}

func (h *history) create(r *rapid.T) {
	free := h.finished()
	h.next++
	q := request(fmt.Sprintf("pvc-%d", h.next), rapid.Int64Range(1, 24).Draw(r, "extents"))
	if rapid.Bool().Draw(r, "file system") {
		q = fsRequest(q.GetName(), q.GetRequiredBytes()/testExtent, "ext4")
	}
	needs := q.GetRequiredBytes()
	if q.GetFsType() != "" {
		needs = max(needs, filesystem.MinimumSize(filesystem.Ext4, false))
	}
	fits := needs <= free*testExtent
	resp, err := h.daemon.client.CreateVolume(h.t.Context(), q)
	if fits != (err == nil) || err != nil && status.Code(err) != codes.ResourceExhausted {
		r.Fatalf("%d bytes into %d extents: %v", q.GetRequiredBytes(), free, err)
	}
	if err != nil {
		return
	}
	v := resp.GetVolume()
	h.volumes[v.GetName()] = v
	if n, pattern, err := h.machine.fake.Traces(testGroup, v.GetId()); err != nil || n > 0 {
		r.Fatalf("new volume shows %d blocks of %#x, error %v", n, pattern, err)
	}
	must.Succeed(r, h.machine.fake.Fill(testGroup, v.GetId(), byte(h.next%255)+1))
	again, err := h.daemon.client.CreateVolume(h.t.Context(), q)
	if err != nil || again.GetVolume().GetId() != v.GetId() {
		r.Fatalf("a retry gives %v, error %v", again, err)
	}
}

func (h *history) delete(r *rapid.T) {
	name := h.pick(r)
	_, err := h.daemon.client.DeleteVolume(h.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: h.volumes[name].GetId()})
	if h.mounted[name] {
		if status.Code(err) != codes.FailedPrecondition {
			r.Fatalf("deleting a mounted volume: %v", err)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	delete(h.volumes, name)
}

func (h *history) expand(r *rapid.T) {
	name := h.pick(r)
	free := h.finished()
	v := h.volumes[name]
	want := v.GetSizeBytes() + rapid.Int64Range(-2, 12).Draw(r, "extents more")*testExtent
	if want < 1 {
		r.Skip("too small")
	}
	resp, err := h.daemon.client.ExpandVolume(h.t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: want})
	if fits := want-v.GetSizeBytes() <= free*testExtent; fits != (err == nil) || err != nil && !refusesSize(err) {
		r.Fatalf("from %d to %d with space for %d: %v", v.GetSizeBytes(), want, free*testExtent, err)
	}
	if err == nil {
		if got := resp.GetVolume().GetSizeBytes(); got != max(want, v.GetSizeBytes()) {
			r.Fatalf("%d bytes, want %d", got, want)
		}
		h.volumes[name] = resp.GetVolume()
	}
}

func (h *history) mount(r *rapid.T) {
	name := h.pick(r)
	if h.mounted[name] {
		h.machine.fake.Unmount(testGroup, h.volumes[name].GetId())
		delete(h.mounted, name)
		return
	}
	must.Succeed(r, h.machine.fake.Mount(testGroup, h.volumes[name].GetId()))
	h.mounted[name] = true
}

func (h *history) administer(r *rapid.T) {
	ctx := h.t.Context()
	if h.admins > 0 && rapid.Bool().Draw(r, "remove") {
		must.Succeed(r, h.machine.fake.Remove(ctx, testGroup, []string{fmt.Sprintf("admins-%d", h.admins)}))
		h.admins--
		return
	}
	err := h.machine.fake.Create(ctx, lvm.CreateOptions{
		Group: testGroup, Volume: fmt.Sprintf("admins-%d", h.admins+1), Extents: rapid.Int64Range(1, 4).Draw(r, "extents"),
	})
	if err == nil {
		h.admins++
	}
}

func (h *history) restart(r *rapid.T) {
	switch rapid.SampledFrom([]string{"stop", "kill", "reboot"}).Draw(r, "how") {
	case "stop":
		h.daemon.stop()
	case "kill":
		h.daemon.kill()
	case "reboot":
		h.daemon.kill()
		h.machine.fake.Deactivate()
		clear(h.mounted)
	}
	h.daemon = h.machine.start(h.t)
}

func (h *history) maximum(r *rapid.T) {
	free := h.finished()
	q := request("maximum", free+1)
	if _, err := h.daemon.client.CreateVolume(h.t.Context(), q); status.Code(err) != codes.ResourceExhausted {
		r.Fatalf("one extent more than %d: %v", free, err)
	}
	if free == 0 {
		return
	}
	resp, err := h.daemon.client.CreateVolume(h.t.Context(), request("maximum", free))
	if err != nil {
		r.Fatalf("%d extents: %v", free, err)
	}
	must.Get(h.daemon.client.DeleteVolume(h.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: resp.GetVolume().GetId()}))(r)
}

func (h *history) check(r *rapid.T) {
	h.daemon.t = h.t
	listed := map[string]*lvmdv1.Volume{}
	for _, v := range h.daemon.list() {
		listed[v.GetName()] = v
	}
	for name, v := range h.volumes {
		got := listed[name]
		if got.GetId() != v.GetId() || got.GetSizeBytes() != v.GetSizeBytes() || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
			r.Fatalf("volume %v is reported as %v", v, got)
		}
		if n, _, err := h.machine.fake.Traces(testGroup, v.GetId()); err != nil || n == 0 {
			r.Fatalf("volume %s has lost its data: error %v", v.GetId(), err)
		}
	}
	if len(listed) != len(h.volumes) {
		r.Fatalf("%d volumes are reported, %d should be", len(listed), len(h.volumes))
	}
	if h.t.Failed() {
		r.FailNow()
	}
}
