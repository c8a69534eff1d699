//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type keptJournal struct {
	m       *machine
	content []byte
}

func (k *keptJournal) path() string { return filepath.Join(k.m.state, "journal.db") }

func (k *keptJournal) keep(t *testing.T) { k.content = must.Get(os.ReadFile(k.path()))(t) }

// keepAt copies the journal at each passage of the points; the last copy counts.
func (k *keptJournal) keepAt(t *testing.T, points ...string) func(*daemon, *Options) {
	return func(d *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if slices.Contains(points, point) {
				k.keep(t)
			}
			d.gate.pass(point)
		}
	}
}

func (k *keptJournal) rollBack(t *testing.T) {
	t.Helper()
	if k.content == nil {
		t.Fatal("nothing was kept")
	}
	must.Succeed(t, os.WriteFile(k.path(), k.content, 0o600))
}

// This happens before or after the tag is removed.
func TestAVolumeThatWasHandedOutIsKeptWhateverTheJournalSays(t *testing.T) {
	thick := newMachine
	thin := func(t *testing.T) *machine { return thinMachine(t, "size: 80Mi, overprovisioning: 9") }
	cloned := func(d *daemon) *lvmdv1.Volume {
		source := d.create(request("source", 4))
		d.fill(source.GetId(), 0x5a)
		return d.create(from(request("v", 4), source.GetId()))
	}
	for name, test := range map[string]struct {
		machine func(*testing.T) *machine
		create  func(*daemon) *lvmdv1.Volume
		// tagged volumes may be handed out with their tag.
		tagged bool
	}{
		"a raw volume":            {thick, func(d *daemon) *lvmdv1.Volume { return d.create(request("v", 4)) }, false},
		"a file system":           {thick, func(d *daemon) *lvmdv1.Volume { return d.create(fsRequest("v", 4, "ext4")) }, true},
		"an encrypted volume":     {thick, func(d *daemon) *lvmdv1.Volume { return d.create(sealed(fsRequest("v", 4, "ext4"))) }, true},
		"an encrypted raw volume": {thick, func(d *daemon) *lvmdv1.Volume { return d.create(sealed(request("v", 4))) }, false},
		"one with a kept key":     {thick, func(d *daemon) *lvmdv1.Volume { return d.create(kept(request("v", 4))) }, true},
		"a copy":                  {thick, cloned, false},
		"a thin volume":           {thin, func(d *daemon) *lvmdv1.Volume { return d.create(request("v", 4)) }, true},
		"a thin clone":            {thin, cloned, true},
		"a thin clone with its own UUID": {thin, func(d *daemon) *lvmdv1.Volume {
			source := d.create(fsRequest("source", 32, "btrfs"))
			return d.create(from(fsRequest("v", 32, "btrfs"), source.GetId()))
		}, true},
		"a thin clone with its source's UUID": {thin, func(d *daemon) *lvmdv1.Volume {
			source := d.create(fsRequest("source", 4, "ext4"))
			v := d.create(from(fsRequest("v", 4, "ext4"), source.GetId()))
			d.machine.mu.Lock()
			defer d.machine.mu.Unlock()
			d.machine.formatted[v.GetDevicePath()] = d.machine.formatted[source.GetDevicePath()]
			return v
		}, true},
		"a larger thin clone": {thin, func(d *daemon) *lvmdv1.Volume {
			return d.create(from(request("v", 5), d.create(request("source", 4)).GetId()))
		}, true},
	} {
		for _, lost := range []bool{false, true} {
			for _, early := range []bool{false, true} {
				if early && !test.tagged {
					continue
				}
				t.Run(fmt.Sprintf("%s, the journal is lost: %t, the tag is on: %t", name, lost, early), func(t *testing.T) {
					m := test.machine(t)
					k := &keptJournal{m: m}
					if early {
						m.tagsStay()
					}
					d := m.start(t, k.keepAt(t, "create: intent written"))
					v := test.create(d)
					filled := v.GetFsType() != "btrfs" // which is larger than the pool
					if filled {
						must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x5a))
					}
					switch {
					case early != m.hasMakingTag(t, v.GetId()) && (early || !test.tagged):
						t.Errorf("it was handed out with the tags %v", m.tagsOf(t, v.GetId()))
					case !early:
						m.untagged(t, v.GetId())
					}
					d.kill()
					if k.rollBack(t); lost {
						m.loseJournal(t)
					}
					for range 2 {
						d = m.start(t, inspects(luks.Blank, nil))
						if got := d.found("v"); got.GetId() != v.GetId() || len(got.GetConditions()) != 0 {
							t.Fatalf("it is %v, was %v", got, v)
						}
						waittest.Until(t, "nothing is under way", d.isIdle)
						if blocks, pattern, err := m.fake.Traces(testGroup, v.GetId()); filled && (err != nil || blocks < int(4*testExtent/4096) || pattern != 0x5a) {
							t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
						}
						d.checkModel()
						d.stop()
					}
					if r := k.record(t, v.GetId()); r.Phase != spec.Ready || r.Copied != 0 || r.Tagged {
						t.Errorf("the journal has %+v", r)
					}
				})
			}
		}
	}
}

// found returns a volume that must be ready at once.
func (d *daemon) found(name string) *lvmdv1.Volume {
	d.t.Helper()
	resp, err := d.client.GetVolume(d.t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
	if v := resp.GetVolume(); err != nil || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		d.t.Fatalf("volume %s is %v, error %v", name, v, err)
	}
	return resp.GetVolume()
}

// record reads the journal of an lvmd that has ended.
func (k *keptJournal) record(t *testing.T, id string) spec.Record {
	t.Helper()
	j, _, _, err := journal.Open(k.path())
	must.Succeed(t, err)
	defer j.Close()
	return must.Get(j.Volumes())(t)[id]
}

func TestASnapshotThatWasHandedOutIsKeptWhateverTheJournalSays(t *testing.T) {
	m := snapshotMachine(t)
	k := &keptJournal{m: m}
	d := m.start(t, k.keepAt(t, "create: intent written"))
	v := d.create(request("v", 4))
	d.fill(v.GetId(), 0x5a)
	s := must.Get(d.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.GetId()}))(t).GetSnapshot()
	d.stop()
	k.rollBack(t)
	d = m.start(t)
	got, err := d.client.GetSnapshot(t.Context(), &lvmdv1.GetSnapshotRequest{Name: "s"})
	if err != nil || got.GetSnapshot().GetId() != s.GetId() || !got.GetSnapshot().GetReady() {
		t.Fatalf("it is %v, error %v", got, err)
	}
	d.shows(d.create(from(request("again", 4), s.GetId())).GetId(), 4, 0x5a)
}

func killedAt(t *testing.T, r *lvmdv1.CreateVolumeRequest, point string) *machine {
	t.Helper()
	m := newMachine(t)
	d := m.start(t)
	crashed := d.gate.crashNext(point)
	go func() { _, _ = d.client.CreateVolume(context.Background(), r) }()
	<-crashed
	d.kill()
	return m
}

// No later request may get such a volume.
func TestWhatIsNotCompleteIsUndoneWithoutAJournal(t *testing.T) {
	for name, test := range map[string]struct {
		request *lvmdv1.CreateVolumeRequest
		at      string
	}{
		"a raw volume":                        {request("v", 4), "create: carved"},
		"a raw volume that is cleared":        {request("v", 4), "create: formatted"},
		"a file system that was not made yet": {fsRequest("v", 4, "ext4"), "create: carved"},
		"an encrypted raw volume":             {sealed(request("v", 4)), "create: formatted"},
	} {
		t.Run(name, func(t *testing.T) {
			m := killedAt(t, test.request, test.at)
			m.loseJournal(t)
			d := m.start(t)
			if got := d.list(); len(got) != 0 {
				t.Errorf("there are %v", got)
			}
			d.checkClean()
		})
	}
}

func TestAnEncryptedFileSystemThatLostItsKeyBeforeItWasHandedOutIsUndone(t *testing.T) {
	m := killedAt(t, sealed(fsRequest("v", 4, "ext4")), "create: formatted")
	m.fake.Deactivate()
	d := m.start(t)
	if got := d.list(); len(got) != 0 {
		t.Errorf("there are %v", got)
	}
	d.checkClean()
}

// lvmd is killed after the effect that completes the volume, before the record.
func TestAVolumeWhoseEndOfMakingIsNotInTheJournalIsThere(t *testing.T) {
	for name, test := range map[string]struct {
		request *lvmdv1.CreateVolumeRequest
		at      string
	}{
		"a raw volume":  {request("v", 4), "create: untagged"},
		"a file system": {fsRequest("v", 4, "ext4"), "create: formatted"},
	} {
		t.Run(name, func(t *testing.T) {
			m := killedAt(t, test.request, test.at)
			d := m.start(t)
			v := d.found("v")
			if again := d.create(test.request); again.GetId() != v.GetId() {
				t.Errorf("a retry made %v, want %v", again, v)
			}
			m.untagged(t, v.GetId())
			d.delete(v.GetId())
			d.checkClean()
		})
	}
}

// It may have been handed out. A later start that can read it decides.
func TestWhatCannotBeLookedAtIsNotUndone(t *testing.T) {
	r := fsRequest("v", 4, "ext4")
	for _, at := range []string{"create: carved", "create: formatted"} {
		t.Run(at, func(t *testing.T) {
			m := killedAt(t, r, at)
			d := m.start(t, func(_ *daemon, o *Options) {
				o.Probe = func(string) (filesystem.Info, error) { return filesystem.Info{}, os.ErrDeadlineExceeded }
			})
			got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "v"}))(t).GetVolume()
			if c := got.GetConditions(); got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING || len(c) != 1 || c[0].GetType() != conditions.ContentsNotFound {
				t.Errorf("it is %v", got)
			}
			_, err := d.client.CreateVolume(t.Context(), r)
			wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
			d.kill()
			d = m.start(t)
			if again := d.create(r); (again.GetId() == got.GetId()) != (at == "create: formatted") {
				t.Errorf("a retry made %v, it was %v", again, got)
			}
			d.delete(d.found("v").GetId())
			d.checkClean()
		})
	}
}

// A user's waiting claim must not depend on another start.
func TestWhatHasNoDeviceAtAStartIsLookedAtOnceItHas(t *testing.T) {
	r := fsRequest("v", 4, "ext4")
	for _, at := range []string{"create: carved", "create: formatted"} {
		t.Run(at, func(t *testing.T) {
			m := killedAt(t, r, at)
			before := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)[0].Volumes[0].Name
			m.fake.Deactivate()
			var fails atomic.Bool
			fails.Store(true)
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpActivate && fails.Load() {
					return &lvm.CommandError{Command: "lvchange", ExitCode: 5, Message: "No data available"}
				}
				return nil
			}
			d := m.start(t, func(_ *daemon, o *Options) { o.activationRetry = time.Millisecond })
			_, err := d.client.CreateVolume(t.Context(), r)
			wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
			fails.Store(false)
			waittest.Until(t, "the volume is made", func() bool { _, err = d.client.CreateVolume(t.Context(), r); return err == nil })
			if v := d.found("v"); (v.GetId() == before) != (at == "create: formatted") {
				t.Errorf("there is %v, it was %v", v, before)
			}
			d.delete(d.found("v").GetId())
			d.checkClean()
		})
	}
}

type scanned struct {
	lvm.Groups
	change func(*lvm.Group)
}

func (s scanned) Scan(ctx context.Context, groups []string) ([]lvm.Group, error) {
	found, err := s.Groups.Scan(ctx, groups)
	for i := range found {
		s.change(&found[i])
	}
	return found, err
}

// A snapshot missing in its pool would be created later, from its source's later contents.
func TestASnapshotIsLookedAtOnceItIsKnownWhetherItsPoolHasIt(t *testing.T) {
	for name, isMade := range map[string]bool{"the pool has it": true, "the pool does not have it": false} {
		t.Run(name, func(t *testing.T) {
			m := snapshotMachine(t)
			d := m.start(t)
			r := &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.create(request("v", 4)).GetId()}
			crashed := d.gate.crashNext("after snapshot")
			go func() { _, _ = d.client.CreateSnapshot(context.Background(), r) }()
			<-crashed
			d.kill()
			var isKnown atomic.Bool
			var before string
			d = m.start(t, probeNow, func(_ *daemon, o *Options) {
				o.LVM = scanned{o.LVM, func(g *lvm.Group) {
					g.Unmade.Unknown = !isKnown.Load()
					for _, lv := range g.Volumes {
						if spec.SnapshotID.MatchString(lv.Name) && before == "" {
							before = lv.Name
						}
					}
					if isKnown.Load() && !isMade {
						g.Unmade.Names = []string{before}
					}
				}}
			})
			_, err := d.client.CreateSnapshot(t.Context(), r)
			wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
			isKnown.Store(true)
			var again *lvmdv1.CreateSnapshotResponse
			waittest.Until(t, "the snapshot is made", func() bool { again, err = d.client.CreateSnapshot(t.Context(), r); return err == nil })
			if got := again.GetSnapshot(); !got.GetReady() || (got.GetId() == before) != isMade {
				t.Errorf("there is %v, it was %v", got, before)
			}
		})
	}
}

// That version did not tag volumes during creation.
func TestAnIntentOfAnEarlierVersionIsNeverWiped(t *testing.T) {
	for name, test := range map[string]struct {
		request *lvmdv1.CreateVolumeRequest
		at      string
		ready   bool
	}{
		"a raw volume":                        {request("v", 4), "create: formatted", false},
		"a file system that was made":         {fsRequest("v", 4, "ext4"), "create: formatted", true},
		"a file system that was not made yet": {fsRequest("v", 4, "ext4"), "create: carved", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			crashed := d.gate.crashNext(test.at)
			go func() { _, _ = d.client.CreateVolume(context.Background(), test.request) }()
			<-crashed
			d.kill()
			id := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)[0].Volumes[0].Name
			must.Succeed(t, m.fake.Untag(t.Context(), testGroup, []string{id}, spec.TagMaking))
			must.Succeed(t, m.fake.Fill(testGroup, id, 0x5a))
			j, _, _, err := journal.Open(filepath.Join(m.state, "journal.db"))
			must.Succeed(t, err)
			r := must.Get(j.Volumes())(t)[id]
			r.Tagged = false
			must.Succeed(t, j.PutVolume(r))
			must.Succeed(t, j.Close())
			m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
				t.Errorf("%s is wiped", volume)
				return nil
			}
			for range 2 {
				d = m.start(t)
				if test.ready {
					if got := d.found("v"); got.GetId() != id {
						t.Errorf("it is %v", got)
					}
					d.kill()
					continue
				}
				got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "v"}))(t).GetVolume()
				if c := got.GetConditions(); got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING || len(c) != 1 || c[0].GetType() != conditions.ContentsNotFound {
					t.Errorf("it is %v", got)
				}
				_, err := d.client.CreateVolume(t.Context(), test.request)
				wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
				d.kill()
			}
			m.fake.BeforeZero = nil
			if blocks, pattern, err := m.fake.Traces(testGroup, id); err != nil || blocks != int(4*testExtent/4096) || pattern != 0x5a {
				t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
			}
			if test.request.GetFsType() != "" {
				m.mu.Lock()
				m.formatted["/dev/"+testGroup+"/"+id] = filesystem.FormatOptions{Type: filesystem.Ext4, UUID: r.Ident.FSUUID}
				m.mu.Unlock()
				d = m.start(t)
				if got := d.create(test.request); got.GetId() != id || len(got.GetConditions()) != 0 {
					t.Errorf("it is %v", got)
				}
			} else {
				d = m.start(t)
			}
			d.delete(id)
			d.checkClean()
		})
	}
}

func TestADeletionGoesOnAfterTheJournalWasRolledBack(t *testing.T) {
	m := newMachine(t)
	var unwiped atomic.Value
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if unwiped.Load() == volume {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	k := &keptJournal{m: m}
	d := m.start(t)
	old := d.create(request("v", 8)).GetId()
	d.fill(old, 0x33)
	d.stop()
	k.keep(t)
	unwiped.Store(old)
	d = m.start(t)
	crashed := d.gate.crashNext("delete: marked")
	d.delete(old)
	<-crashed
	d.kill()
	d = m.start(t, func(d *daemon, _ *Options) { crashed = d.gate.crashNext("create: ready") })
	go func() { _, _ = d.client.CreateVolume(context.Background(), request("v", 4)) }()
	<-crashed
	d.kill()
	unwiped.Store("")
	if tags := m.tagsOf(t, old); !slices.Contains(tags, spec.TagDeleted) {
		t.Fatalf("it has the tags %v", tags)
	}
	k.rollBack(t)
	d = m.start(t)
	v := d.found("v")
	if v.GetId() == old {
		t.Error("a volume that was deleted is handed out again")
	}
	d.delete(v.GetId())
	d.checkClean()
}

func TestThatAHeaderWasMadeIsKnownAfterTheJournalWasRolledBack(t *testing.T) {
	m := newMachine(t)
	k := &keptJournal{m: m}
	d := m.start(t)
	v := d.create(kept(fsRequest("v", 4, "ext4")))
	d.stop()
	k.keep(t)
	d = m.start(t)
	must.Get(d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()}))(t)
	d.stop()
	k.rollBack(t)
	d = m.start(t, inspects(luks.Blank, nil)) // The header is lost, too.
	if got := d.found("v"); !got.GetEncrypted() {
		t.Errorf("it is to be made again: %v", got)
	}
}

func TestWithoutAJournalNothingThatWasHandedOutIsFormattedAgain(t *testing.T) {
	for name, r := range map[string]*lvmdv1.CreateVolumeRequest{
		"a file system": fsRequest("v", 4, "ext4"), "one with a kept key": kept(fsRequest("v", 4, "ext4")),
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			id := d.create(r).GetId()
			must.Succeed(t, m.fake.Fill(testGroup, id, 0x5a))
			if r.GetEncryption() != "" {
				must.Get(d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: id}))(t)
			}
			m.untagged(t, id)
			d.stop()
			m.loseJournal(t)
			m.mu.Lock()
			clear(m.formatted)
			m.mu.Unlock()
			m.formatHook = func(context.Context, string) error { t.Error("it is formatted"); return nil }
			d = m.start(t, inspects(luks.Blank, luks.ErrDamaged))
			_, err := d.client.CreateVolume(t.Context(), r)
			wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
			blocks, pattern, err := m.fake.Traces(testGroup, id)
			if err != nil || blocks < int(4*testExtent/4096) || pattern != 0x5a {
				t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
			}
			d.delete(id)
			m.formatHook = nil
			d.checkClean()
		})
	}
}

func TestAVolumeThatWasReformattedIsKeptWhateverTheJournalSays(t *testing.T) {
	m := newMachine(t)
	k := &keptJournal{m: m}
	d := m.start(t)
	requests := []*lvmdv1.CreateVolumeRequest{sealed(fsRequest("fs", 4, "ext4")), sealed(request("raw", 4))}
	for _, r := range requests {
		d.create(r)
	}
	d.reboot()
	var mu sync.Mutex
	d = m.start(t, func(d *daemon, o *Options) {
		o.crashPoint = func(point string) {
			if point == "encrypt: loss noted" {
				mu.Lock()
				k.keep(t)
				mu.Unlock()
			}
			d.gate.pass(point)
		}
	})
	was := map[string]*lvmdv1.Volume{}
	for _, r := range requests {
		v := d.ready(r.GetName())
		was[v.GetName()] = v
		must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x5a))
	}
	d.stop()
	k.rollBack(t)
	if r := k.record(t, was["fs"].GetId()); r.Phase != spec.DataLost && k.record(t, was["raw"].GetId()).Phase != spec.DataLost {
		t.Fatalf("the journal has %+v", r)
	}
	m.formatHook = func(context.Context, string) error { t.Error("it is formatted again"); return nil }
	d = m.start(t)
	for name, before := range was {
		v := d.ready(name)
		if v.GetDeviceMinor() != before.GetDeviceMinor() || !v.GetEmptiedAt().AsTime().Equal(before.GetEmptiedAt().AsTime()) {
			t.Errorf("it is %v, was %v", v, before)
		}
		if blocks, pattern, err := m.fake.Traces(testGroup, v.GetId()); err != nil || blocks == 0 || pattern != 0x5a {
			t.Errorf("%s holds %d blocks of %#x, error %v", name, blocks, pattern, err)
		}
	}
	d.delete(was["fs"].GetId())
	d.delete(was["raw"].GetId())
	d.checkClean()
}
