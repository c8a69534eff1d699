//go:build !kernel

package lvmd

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The source "v" of a lineage holds a pattern in four extents.
type lineage struct {
	*daemon
	ctx    context.Context
	source string
	// gone names those whose deletion was requested.
	volumes   map[string]*lvmdv1.Volume
	snapshots map[string]*lvmdv1.Snapshot
	gone      map[string]bool
	asked     []*lvmdv1.CreateVolumeRequest
}

const lineagePattern = 0x5a

func (l *lineage) begin(r *lvmdv1.CreateVolumeRequest) {
	resp, err := l.client.CreateVolume(l.ctx, r)
	if err != nil {
		return
	}
	l.source = resp.GetVolume().GetId()
	l.volumes[r.GetName()] = resp.GetVolume()
	l.fill(l.source, lineagePattern)
}

func (l *lineage) keep(name string) string {
	if l.source == "" || l.ctx.Err() != nil {
		return ""
	}
	resp, err := l.client.CreateSnapshot(l.ctx, &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: l.source})
	if err != nil {
		return ""
	}
	l.snapshots[name] = resp.GetSnapshot()
	return resp.GetSnapshot().GetId()
}

func (l *lineage) restore(name, id string, extents int64) {
	if id == "" || l.ctx.Err() != nil {
		return
	}
	r := from(request(name, extents), id)
	l.asked = append(l.asked, r)
	if resp, err := l.client.CreateVolume(l.ctx, r); err == nil {
		l.volumes[name] = resp.GetVolume()
	}
}

func (l *lineage) forget(name string) {
	if s := l.snapshots[name]; s != nil {
		l.gone[name] = true
		_, _ = l.client.DeleteSnapshot(l.ctx, &lvmdv1.DeleteSnapshotRequest{Id: s.GetId()})
	}
	if v := l.volumes[name]; v != nil {
		l.gone[name] = true
		_, _ = l.client.DeleteVolume(l.ctx, &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
}

var lineages = []struct {
	name, config string
	// places is the minimum number of crash points.
	places int
	run    func(*lineage)
}{
	{"a snapshot is taken, restored larger and deleted before its volumes", thinClass("size: 80Mi, overprovisioning: 3, dataThreshold: 100%"), 40, func(l *lineage) {
		l.begin(request("v", 4))
		id := l.keep("s")
		l.restore("r", id, 6)
		l.forget("s")
		l.forget("v")
	}},
	{"a volume is cloned twice, of which one clone is deleted", thinClass("size: 80Mi, overprovisioning: 3, dataThreshold: 100%"), 32, func(l *lineage) {
		l.begin(request("v", 4))
		l.restore("a", l.source, 4)
		l.restore("b", l.source, 5)
		l.forget("a")
	}},
	{"a volume is copied", oneClass, 60, func(l *lineage) {
		l.begin(request("v", 4))
		l.restore("c", l.source, 5)
		l.forget("v")
	}},
}

func TestKilledWhileVolumesAreMadeOfOthersNothingIsLostOrLeaked(t *testing.T) {
	for _, s := range lineages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			recoveries, killed := 0, 0
			for at := 1; ; at++ {
				survived, point, _ := runLineage(t, s.config, s.run, at, 0)
				if !survived && at%4 == 0 {
					recoveries++
					if _, _, again := runLineage(t, s.config, s.run, at, 2); again {
						killed++
					}
				}
				if t.Failed() {
					t.Fatalf("crashed at place %d, %q", at, point)
				}
				if survived {
					if at-1 < s.places {
						t.Errorf("lvmd crashed at %d places, want at least %d", at-1, s.places)
					}
					if killed == 0 {
						t.Errorf("lvmd crashed in none of %d recoveries", recoveries)
					}
					t.Logf("lvmd crashed at %d places, and in %d of %d recoveries", at-1, killed, recoveries)
					return
				}
			}
		})
	}
}

func runLineage(t *testing.T, config string, run func(*lineage), at, again int) (survived bool, point string, crashedAgain bool) {
	m := newMachine(t)
	m.config = config
	m.start(t).stop() // It creates the pool.
	d := m.start(t, func(d *daemon, _ *Options) { d.gate.crashAt, d.gate.done = at, make(chan struct{}) })
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	defer cancel()
	go func() {
		select {
		case <-d.gate.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	l := &lineage{
		daemon: d, ctx: ctx, volumes: map[string]*lvmdv1.Volume{}, snapshots: map[string]*lvmdv1.Snapshot{}, gone: map[string]bool{},
	}
	run(l)
	waittest.Until(t, "lvmd has ended, or has nothing to do", func() bool { return d.gate.crashed.Load() || d.isIdle() })
	survived = !d.gate.crashed.Load()
	d.kill()
	if again > 0 {
		var recovery *daemon
		between, err := m.tryStart(t, func(d *daemon, _ *Options) {
			recovery = d
			d.gate.crashAt, d.gate.done = again, make(chan struct{})
		})
		if err == nil {
			for i := 0; i < 100 && !between.gate.crashed.Load() && !between.isIdle(); i++ {
				time.Sleep(time.Millisecond)
			}
		}
		crashedAgain = recovery.gate.crashed.Load()
		if err == nil {
			between.kill()
		}
	}
	l.check(t, m)
	return survived, d.gate.point, crashedAgain
}

func (l *lineage) check(t *testing.T, m *machine) {
	t.Helper()
	d := m.start(t)
	defer d.stop()
	for name, v := range l.volumes {
		if l.gone[name] {
			continue
		}
		resp, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
		if got := resp.GetVolume(); err != nil || got.GetId() != v.GetId() || got.GetSizeBytes() != v.GetSizeBytes() || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
			t.Errorf("acknowledged volume %v is now %v, error %v", v, got, err)
			continue
		}
		if v.GetId() != l.source || len(l.asked) > 0 {
			d.shows(v.GetId(), 4, lineagePattern)
		}
	}
	for name, s := range l.snapshots {
		if l.gone[name] {
			continue
		}
		resp, err := d.client.GetSnapshot(t.Context(), &lvmdv1.GetSnapshotRequest{Name: name})
		if err != nil || resp.GetSnapshot().GetId() != s.GetId() || !resp.GetSnapshot().GetReady() {
			t.Errorf("acknowledged snapshot %v is now %v, error %v", s, resp, err)
			continue
		}
		d.shows(d.create(from(request("again", 4), s.GetId())).GetId(), 4, lineagePattern)
	}
	for _, r := range l.asked {
		if l.volumes[r.GetName()] != nil || l.gone[r.GetName()] {
			continue
		}
		waittest.Until(t, "a retry succeeds", func() bool {
			resp, err := d.client.CreateVolume(t.Context(), r)
			if err == nil {
				d.shows(resp.GetVolume().GetId(), 4, lineagePattern)
			} else if status.Code(err) != codes.Aborted {
				t.Fatalf("a retry of %v: %v", r, err)
			}
			return err == nil
		})
	}
	for name := range l.gone {
		waittest.Until(t, "it can be deleted", func() bool {
			_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: name})
			_, snapErr := d.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Name: name})
			return err == nil && snapErr == nil
		})
	}
	for _, v := range d.list() {
		d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	}
	snapshots := must.Get(d.client.ListSnapshots(t.Context(), &lvmdv1.ListSnapshotsRequest{}))(t)
	for _, s := range snapshots.GetSnapshots() {
		waittest.Until(t, "the snapshot can be deleted", func() bool {
			_, err := d.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Id: s.GetId()})
			return err == nil
		})
	}
	waittest.Until(t, "nothing is left", func() bool {
		left := len(d.inventory.Inspect())
		records, err := d.journal.Volumes()
		return left == 0 && err == nil && len(records) == 0
	})
	d.checkModel()
	if s, err := m.fake.PoolStatus(testGroup, "pool"); err == nil && s.DataUsed != 0 {
		t.Errorf("%d chunks of the pool are used by no volume", s.DataUsed)
	}
}
