//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (g *gate) Tag(ctx context.Context, group string, volumes []string, tag string) error {
	return g.around("tag", func() error { return g.Groups.Tag(ctx, group, volumes, tag) })
}

func (g *gate) Untag(ctx context.Context, group string, volumes []string, tags ...string) error {
	return g.around("untag", func() error { return g.Groups.Untag(ctx, group, volumes, tags...) })
}

func (m *machine) loseJournal(t *testing.T) {
	t.Helper()
	must.Succeed(t, os.Remove(filepath.Join(m.state, "journal.db")))
}

func (d *daemon) snapshot(name, source string) *lvmdv1.Snapshot {
	d.t.Helper()
	resp, err := d.client.CreateSnapshot(d.t.Context(), &lvmdv1.CreateSnapshotRequest{
		Name: name, SourceVolumeId: source, Owner: &lvmdv1.Owner{ClusterId: "cluster"},
	})
	if err != nil {
		d.t.Fatalf("snapshot %s: %v", name, err)
	}
	return resp.GetSnapshot()
}

func (d *daemon) deleteSnapshot(id string) {
	d.t.Helper()
	if _, err := d.client.DeleteSnapshot(d.t.Context(), &lvmdv1.DeleteSnapshotRequest{Id: id}); err != nil {
		d.t.Fatalf("delete snapshot %s: %v", id, err)
	}
}

func from(r *lvmdv1.CreateVolumeRequest, id string) *lvmdv1.CreateVolumeRequest {
	r.Source = &lvmdv1.VolumeSource{VolumeId: id}
	if strings.HasPrefix(id, "cs") {
		r.Source = &lvmdv1.VolumeSource{SnapshotId: id}
	}
	return r
}

func (d *daemon) fill(id string, pattern byte) {
	d.t.Helper()
	must.Succeed(d.t, d.machine.fake.Fill(testGroup, id, pattern))
}

// shows wants the pattern in the given number of extents, and zeroes elsewhere.
func (d *daemon) shows(id string, extents int64, pattern byte) {
	d.t.Helper()
	n, got, err := d.machine.fake.Traces(testGroup, id)
	if err != nil || int64(n) != extents*testExtent/4096 || n > 0 && got != pattern {
		d.t.Errorf("%s shows %d blocks of %#x, error %v; want %d of %#x", id, n, got, err, extents*testExtent/4096, pattern)
	}
}

func snapshotMachine(t *testing.T) *machine {
	return thinMachine(t, "size: 80Mi, overprovisioning: 3, dataThreshold: 100%")
}

func TestASnapshotKeepsWhatItsVolumeHeldAndIsRestoredWithOneCommand(t *testing.T) {
	m := snapshotMachine(t)
	d := m.start(t)
	v := d.create(request("v", 4))
	// The reserved space, not the used, limits other volumes.
	other := d.create(request("other", 16))
	d.fill(v.GetId(), 0x11)
	scans := m.fake.Commands(lvmfake.OpScan)
	all := d.available()
	s := d.snapshot("v", v.GetId()) // the names do not collide
	if !s.GetReady() || s.GetSizeBytes() != 4*testExtent || s.GetSourceVolumeId() != v.GetId() || s.GetDeviceClass() != "thin" ||
		s.GetMode() != lvmdv1.VolumeMode_VOLUME_MODE_BLOCK || s.GetOwner().GetClusterId() != "cluster" || len(s.GetConditions()) > 0 {
		t.Errorf("snapshot %v", s)
	}
	if got := d.available(); got != all-4 {
		t.Errorf("%d extents are available, were %d", got, all)
	}
	if again := d.snapshot("v", v.GetId()); again.GetId() != s.GetId() {
		t.Errorf("a retry gives %v", again)
	}
	d.fill(v.GetId(), 0x22)
	r := d.create(from(request("r", 4), s.GetId()))
	if r.GetSource().GetSnapshotId() != s.GetId() || r.GetDevicePath() == "" || len(r.GetConditions()) > 0 {
		t.Errorf("volume %v", r)
	}
	d.shows(r.GetId(), 4, 0x11)
	if n := m.fake.Commands(lvmfake.OpSnapshot); n != 2 {
		t.Errorf("%d snapshots were taken of LVM", n)
	}
	large := d.create(from(request("large", 6), s.GetId()))
	if large.GetSizeBytes() != 6*testExtent {
		t.Errorf("volume %v", large)
	}
	d.shows(large.GetId(), 4, 0x11)
	if n := m.fake.Commands(lvmfake.OpScan) - scans; n != 0 {
		t.Errorf("%d scans were needed", n)
	}
	d.checkModel()

	d.delete(v.GetId())
	d.deleteSnapshot(s.GetId())
	waittest.Until(t, "they are gone", d.isIdle)
	d.shows(r.GetId(), 4, 0x11)
	if again := d.create(from(request("r", 4), s.GetId())); again.GetId() != r.GetId() {
		t.Errorf("a retry gives %v", again)
	}
	d.delete(r.GetId())
	d.delete(large.GetId())
	d.delete(other.GetId())
	waittest.Until(t, "all space is back", func() bool { return d.available() == 60 })
	if st, err := m.fake.PoolStatus(testGroup, "pool"); err != nil || st.DataUsed != 0 {
		t.Errorf("pool %+v, error %v", st, err)
	}
	d.checkModel()
}

func TestSnapshotsAreNoVolumesAndListInPages(t *testing.T) {
	m := snapshotMachine(t)
	d := m.start(t)
	v, w := d.create(request("v", 1)), d.create(fsRequest("w", 4, "ext4"))
	want := map[string]bool{}
	for i := range 5 {
		want[d.snapshot(fmt.Sprintf("s%d", i), v.GetId()).GetId()] = true
	}
	other := d.snapshot("other", w.GetId())
	if n := len(d.list()); n != 2 || len(d.state().GetVolumes()) != 2 {
		t.Errorf("%d volumes are listed, %d watched", n, len(d.state().GetVolumes()))
	}
	if _, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: other.GetId()}); err == nil {
		t.Error("a snapshot is got as a volume")
	}
	if got, err := d.client.GetSnapshot(t.Context(), &lvmdv1.GetSnapshotRequest{Name: "other"}); err != nil || got.GetSnapshot().GetId() != other.GetId() || got.GetSnapshot().GetFsType() != "ext4" {
		t.Errorf("%v, error %v", got, err)
	}
	token, pages := "", 0
	for {
		resp := must.Get(d.client.ListSnapshots(t.Context(), &lvmdv1.ListSnapshotsRequest{PageSize: 2, PageToken: token, SourceVolumeId: v.GetId()}))(t)
		pages++
		for _, s := range resp.GetSnapshots() {
			if !want[s.GetId()] {
				t.Errorf("unexpected or repeated %v", s)
			}
			delete(want, s.GetId())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if pages != 3 || len(want) > 0 {
		t.Errorf("%d pages, %d snapshots were left out", pages, len(want))
	}
	d.delete(v.GetId())
	d.stop()
	m.fake.Deactivate()
	activations := m.fake.Commands(lvmfake.OpActivate)
	d = m.start(t)
	d.stop()
	if n := m.fake.Commands(lvmfake.OpActivate) - activations; n != 1 {
		t.Errorf("%d activations", n)
	}
	m.loseJournal(t)
	d = m.start(t)
	if n := m.fake.Commands(lvmfake.OpActivate) - activations; n != 1 {
		t.Errorf("snapshots, which have no device, were activated")
	}
	got, err := d.client.GetSnapshot(t.Context(), &lvmdv1.GetSnapshotRequest{Id: other.GetId()})
	if err != nil || !got.GetSnapshot().GetReady() || got.GetSnapshot().GetSourceVolumeId() != w.GetId() || got.GetSnapshot().GetName() != "other" {
		t.Errorf("%v, error %v", got, err)
	}
	d.checkModel()
}

func TestRequestsForSnapshotsThatCannotBeAreRefused(t *testing.T) {
	m := snapshotMachine(t)
	m.config += "- {name: local, volumeGroup: carve}\n"
	d := m.start(t)
	v := d.create(request("v", 4))
	thick := request("thick", 4)
	thick.DeviceClass = "local"
	l := d.create(thick)
	s := d.snapshot("s", v.GetId())
	w := d.create(request("w", 4))
	ask := func(name, source string) error {
		_, err := d.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: source, Owner: &lvmdv1.Owner{ClusterId: "cluster"}})
		return err
	}
	gone := "cv" + strings.Repeat("a", 26)
	wantCode(t, ask("", v.GetId()), codes.InvalidArgument, "INVALID_FIELD")
	wantCode(t, ask("x", "nonsense"), codes.InvalidArgument, "INVALID_FIELD")
	wantCode(t, ask("x", gone), codes.NotFound, "VOLUME_NOT_FOUND")
	wantCode(t, ask("x", l.GetId()), codes.FailedPrecondition, "NOT_THIN")
	wantCode(t, ask("s", w.GetId()), codes.AlreadyExists, "REQUEST_DIFFERS")
	make := func(r *lvmdv1.CreateVolumeRequest) error {
		_, err := d.client.CreateVolume(t.Context(), r)
		return err
	}
	wantCode(t, make(from(request("x", 4), "cs"+strings.Repeat("a", 26))), codes.NotFound, "SNAPSHOT_NOT_FOUND")
	wantCode(t, make(from(request("x", 4), gone)), codes.NotFound, "VOLUME_NOT_FOUND")
	wantCode(t, make(from(fsRequest("x", 4, "ext4"), s.GetId())), codes.InvalidArgument, "INVALID_FIELD")
	both := from(request("x", 4), s.GetId())
	both.Source.VolumeId = v.GetId()
	wantCode(t, make(both), codes.InvalidArgument, "INVALID_FIELD")
	elsewhere := from(request("x", 4), s.GetId())
	elsewhere.DeviceClass = "local"
	wantCode(t, make(elsewhere), codes.FailedPrecondition, "NOT_THIN")
	small := from(request("x", 1), s.GetId())
	small.LimitBytes = 2 * testExtent
	wantCode(t, make(small), codes.OutOfRange, "SIZE_OUT_OF_RANGE")
	small.LimitBytes = 0
	if got := d.create(small); got.GetSizeBytes() != 4*testExtent {
		t.Errorf("a smaller volume than its source: %v", got)
	}
	differs := request("x", 1)
	wantCode(t, make(differs), codes.AlreadyExists, "REQUEST_DIFFERS")
	huge := from(request("y", 61), s.GetId())
	wantCode(t, make(huge), codes.ResourceExhausted, "NO_SPACE")
	fill := request("fill", d.available()-3)
	d.create(fill)
	wantCode(t, ask("more", v.GetId()), codes.ResourceExhausted, "NO_SPACE")
	if _, err := d.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Name: "unknown"}); err != nil {
		t.Errorf("deleting an unknown snapshot: %v", err)
	}
	d.checkModel()
}

func TestAThinVolumeIsClonedWhileItIsMounted(t *testing.T) {
	m := snapshotMachine(t)
	d := m.start(t)
	v := d.create(fsRequest("v", 4, "ext4"))
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	formats := len(m.formatted)
	c := d.create(from(fsRequest("c", 1, "ext4"), v.GetId()))
	if c.GetFsType() != "ext4" || c.GetSource().GetVolumeId() != v.GetId() || len(m.formatted) != formats {
		t.Errorf("volume %v", c)
	}
	if c.GetSizeBytes() != v.GetSizeBytes() || v.GetSizeBytes() < filesystem.MinimumSize(filesystem.Ext4, false) {
		t.Errorf("clone %v of %v", c, v)
	}
}

func TestAThickVolumeIsClonedByACopyUnlessItIsInUse(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("v", 3))
	d.fill(v.GetId(), 0x33)
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	_, err := d.client.CreateVolume(t.Context(), from(request("c", 5), v.GetId()))
	wantCode(t, err, codes.FailedPrecondition, "VOLUME_IN_USE")
	m.fake.Unmount(testGroup, v.GetId())
	if got := d.available(); got != testTotal-3 {
		t.Errorf("%d extents are available", got)
	}
	c := d.create(from(request("c", 5), v.GetId()))
	if c.GetSizeBytes() != 5*testExtent || c.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("volume %v", c)
	}
	d.shows(c.GetId(), 3, 0x33)
	found, _ := m.fake.Scan(t.Context(), []string{testGroup})
	if tags := found[0].Volume(c.GetId()).Tags; strings.Contains(strings.Join(tags, " "), spec.TagCopying) {
		t.Errorf("tags %q", tags)
	}
	d.delete(v.GetId())
	d.checkModel()
	d.delete(c.GetId())
	d.checkClean()
}

func TestACopyOfAVolumeThatIsWrittenToMeanwhileFails(t *testing.T) {
	for name, written := range map[string]bool{"it is written to": true, "it is left alone": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			var source string
			d := m.start(t, func(_ *daemon, o *Options) {
				o.crashPoint = func(point string) {
					if point == "clone: chunk copied" && written {
						m.fill(t, source, 0x44)
					}
				}
			})
			source = d.create(request("v", 8)).GetId()
			d.fill(source, 0x33)
			made, err := d.client.CreateVolume(t.Context(), from(request("c", 8), source))
			if !written {
				must.Succeed(t, err)
				d.shows(made.GetVolume().GetId(), 8, 0x33)
				return
			}
			wantCode(t, err, codes.FailedPrecondition, "VOLUME_IN_USE")
			if got := d.list(); len(got) != 1 || got[0].GetId() != source {
				t.Errorf("there are %v, want the source only", got)
			}
			written = false
			made = must.Get(d.client.CreateVolume(t.Context(), from(request("c", 8), source)))(t)
			d.shows(made.GetVolume().GetId(), 8, 0x44)
		})
	}
}

func TestACopyIsNoFasterThanItsClassAllows(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, copyRate: 100Mi}\n"
	d := m.start(t)
	v := d.create(request("v", 8))
	d.fill(v.GetId(), 0x33)
	began := time.Now()
	must.Get(d.client.CreateVolume(t.Context(), from(request("c", 8), v.GetId())))(t)
	// The burst is a tenth of a second's rate.
	if took, least := time.Since(began), time.Duration(8*testExtent-10<<20)*time.Second/(100<<20); took < least {
		t.Errorf("%d bytes were copied in %v, want at least %v", 8*testExtent, took, least)
	}
}

func TestACopyGoesOnWithoutItsCallerAndIsCancelledByADeletion(t *testing.T) {
	m := newMachine(t)
	hold, reached := make(chan struct{}), make(chan struct{}, 100)
	d := m.start(t, func(_ *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if point == "clone: chunk copied" {
				reached <- struct{}{}
				<-hold
			}
		}
	})
	v := d.create(request("v", 8))
	d.fill(v.GetId(), 0x33)
	ask := from(request("c", 8), v.GetId())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	if _, err := d.client.CreateVolume(ctx, ask); err == nil {
		t.Fatal("the copy was over too soon")
	}
	got, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"})
	if err != nil || got.GetVolume().GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
		t.Errorf("%v, error %v", got, err)
	}
	_, err = d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	wantCode(t, err, codes.Aborted, "OPERATION_PENDING")
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 9 * testExtent})
	wantCode(t, err, codes.Aborted, "OPERATION_PENDING")
	if err := m.fake.Mount(testGroup, v.GetId()); err == nil {
		t.Error("the source can be mounted")
	}
	hold <- struct{}{}
	<-reached
	waittest.Until(t, "there is progress", func() bool {
		got, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"})
		return err == nil && got.GetVolume().GetCopiedBytes() == testExtent
	})
	_, err = d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "c"})
	wantCode(t, err, codes.Aborted, "OPERATION_PENDING")
	close(hold)
	waittest.Until(t, "it is undone", func() bool { return d.available() == testTotal-8 && d.isIdle() })
	if c := d.create(ask); c.GetSizeBytes() != 8*testExtent {
		t.Errorf("volume %v", c)
	}
	for _, v := range d.list() {
		d.delete(v.GetId())
	}
	d.checkClean()
}

func TestVolumesAreCopiedIntoAndOutOfPools(t *testing.T) {
	m := thinMachine(t, "size: 80Mi")
	m.config += "- {name: local, volumeGroup: carve}\n"
	d := m.start(t)
	v := d.create(request("v", 4))
	h := must.Get(m.fake.Open(testGroup, v.GetId()))(t)
	must.Get(h.WriteAt([]byte{0x44}, 0))(t)
	h.Close()
	thick := from(request("thick", 4), v.GetId())
	thick.DeviceClass = "local"
	l := d.create(thick)
	if n, pattern, _ := m.fake.Traces(testGroup, l.GetId()); n != 1 || pattern != 0x44 {
		t.Errorf("%d blocks of %#x", n, pattern)
	}
	back := d.create(from(request("back", 4), l.GetId()))
	if n, pattern, _ := m.fake.Traces(testGroup, back.GetId()); n != 1 || pattern != 0x44 {
		t.Errorf("%d blocks of %#x", n, pattern)
	}
	// Zeroes take no space in a pool.
	if s, err := m.fake.PoolStatus(testGroup, "pool"); err != nil || s.DataUsed != 2 {
		t.Errorf("pool %+v, error %v", s, err)
	}
	d.checkModel()
}

func TestACopyWhoseJournalIsLostIsUndone(t *testing.T) {
	m := newMachine(t)
	crashed := make(chan struct{})
	d := m.start(t, func(_ *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if point == "clone: chunk copied" {
				close(crashed)
				select {}
			}
		}
	})
	v := d.create(request("v", 4))
	d.fill(v.GetId(), 0x55)
	go d.client.CreateVolume(context.Background(), from(request("c", 4), v.GetId()))
	<-crashed
	d.kill()
	m.loseJournal(t)
	d = m.start(t)
	waittest.Until(t, "what was copied is gone", func() bool { return d.available() == testTotal-4 && d.isIdle() })
	c := d.create(from(request("c", 4), v.GetId()))
	d.shows(c.GetId(), 4, 0x55)
	// A finished copy outlives the journal.
	d.kill()
	m.loseJournal(t)
	d = m.start(t)
	if again := d.create(from(request("c", 4), v.GetId())); again.GetId() != c.GetId() {
		t.Errorf("volume %v", again)
	}
}

type copies struct {
	chunks, stopAfter int
	stopped           chan struct{}
}

// watch counts crash points; the copy blocks at the one where lvmd is to end.
func (c *copies) watch(d *daemon, o *Options) {
	pass := o.crashPoint
	o.crashPoint = func(point string) {
		pass(point)
		if point != "clone: chunk copied" {
			return
		}
		if c.chunks++; c.chunks == c.stopAfter {
			close(c.stopped)
			<-d.work.Done()
			pass(point)
		}
	}
}

// interruptCopy ends lvmd when five of eight extents are journaled.
func interruptCopy(t *testing.T, m *machine, end func(*daemon)) (source, unfinished string) {
	t.Helper()
	c := copies{stopAfter: 6, stopped: make(chan struct{})}
	d := m.start(t, func(d *daemon, o *Options) { c.watch(d, o) })
	source = d.create(request("v", 8)).GetId()
	d.fill(source, 0x33)
	go d.client.CreateVolume(context.Background(), from(request("c", 8), source))
	<-c.stopped
	unfinished = must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"}))(t).GetVolume().GetId()
	end(d)
	return source, unfinished
}

func TestAnInterruptedCopyGoesOnIfItsSourceIsWhatItWas(t *testing.T) {
	for _, tt := range []struct {
		name      string
		end       func(*daemon)
		oldKernel bool
		meanwhile func(t *testing.T, m *machine, source string)
		// again means that everything is copied again, to another volume; rest counts the extents
		// copied after the restart.
		again bool
		rest  int
		holds byte
	}{
		{name: "lvmd is stopped", end: (*daemon).stop, rest: 2, holds: 0x33},
		{name: "lvmd is killed", end: (*daemon).kill, rest: 3, holds: 0x33},
		{name: "the source is written to", end: (*daemon).kill, again: true, holds: 0x44,
			meanwhile: func(t *testing.T, m *machine, source string) { m.fill(t, source, 0x44) }},
		{name: "the source has another device", end: (*daemon).kill, again: true, holds: 0x33,
			meanwhile: func(t *testing.T, m *machine, source string) { m.fake.Deactivate() }},
		{name: "the source is mounted", end: (*daemon).kill, again: true, holds: 0x33,
			meanwhile: func(t *testing.T, m *machine, source string) { must.Succeed(t, m.fake.Mount(testGroup, source)) }},
		{name: "the kernel does not number its devices", end: (*daemon).kill, oldKernel: true, again: true, holds: 0x33},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.fake.OldKernel = tt.oldKernel
			source, unfinished := interruptCopy(t, m, tt.end)
			if tt.meanwhile != nil {
				tt.meanwhile(t, m, source)
			}
			var rest copies
			d := m.start(t, func(d *daemon, o *Options) { rest.watch(d, o) })
			waittest.Until(t, "the copy is complete or undone", d.isIdle)
			m.fake.Unmount(testGroup, source)
			c := d.create(from(request("c", 8), source))
			d.shows(c.GetId(), 8, tt.holds)
			if again := c.GetId() != unfinished; again != tt.again {
				t.Errorf("the volume is another one: %t, want %t", again, tt.again)
			}
			if !tt.again && rest.chunks != tt.rest {
				t.Errorf("%d extents were copied after the restart, want %d", rest.chunks, tt.rest)
			}
			d.delete(source)
			d.delete(c.GetId())
			d.checkClean()
		})
	}
}

func TestACopyIsRefusedWhereWritesAreNotCounted(t *testing.T) {
	for name, test := range map[string]struct{ never, midway bool }{
		"they can be": {false, false}, "they cannot be": {true, false}, "from the middle of the copy on": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.fake.NotCounted.Store(true)
			m.fake.NeverCounted.Store(test.never)
			d := m.start(t, func(d *daemon, o *Options) {
				o.crashPoint = func(point string) {
					if test.midway && point == "clone: chunk copied" {
						m.fake.NotCounted.Store(true)
					}
					d.gate.pass(point)
				}
			})
			v := d.create(request("v", 4))
			c, err := d.client.CreateVolume(t.Context(), from(request("c", 4), v.GetId()))
			if test.never || test.midway {
				wantCode(t, err, codes.FailedPrecondition, names.ReasonWritesNotCounted)
			} else {
				must.Succeed(t, err)
				d.delete(c.GetVolume().GetId())
			}
			d.delete(v.GetId())
			d.checkClean()
		})
	}
}
