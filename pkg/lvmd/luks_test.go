//go:build !kernel

package lvmd

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const headerExtents = luks.HeaderBytes / testExtent

func kept(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Encryption, r.EncryptionDiscards = names.EncryptionLUKS, true
	return r
}

func inspects(state luks.State, err error) func(*daemon, *Options) {
	return func(_ *daemon, o *Options) {
		o.Inspect = func(string, string) (luks.State, error) { return state, err }
	}
}

func TestAVolumeThatItsUserEncryptsHasSpaceForTheHeaderAndNoFileSystem(t *testing.T) {
	for _, r := range []*lvmdv1.CreateVolumeRequest{kept(request("pvc-1", 4)), kept(fsRequest("pvc-2", 4, "ext4"))} {
		m := newMachine(t)
		d := m.start(t)
		r.LimitBytes = r.GetRequiredBytes()
		v := d.create(r)
		if v.GetSizeBytes() != 4*testExtent || d.available() != testTotal-4-headerExtents {
			t.Errorf("it has %d bytes, and %d extents are left", v.GetSizeBytes(), d.available())
		}
		if v.GetEncryption() != names.EncryptionLUKS || !v.GetEncryptionDiscards() || v.GetDevicePath() != "/dev/"+testGroup+"/"+v.GetId() || len(m.formatted) > 0 {
			t.Errorf("volume %v, formatted %v", v, m.formatted)
		}
		if again := d.create(r); again.GetId() != v.GetId() {
			t.Errorf("the same request made %v", again)
		}
		grown, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 6 * testExtent, LimitBytes: 6 * testExtent})
		if err != nil || grown.GetVolume().GetSizeBytes() != 6*testExtent || d.available() != testTotal-6-headerExtents {
			t.Errorf("grown: %v, error %v; %d extents are left", grown, err, d.available())
		}
		if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: testTotal * testExtent}); err == nil {
			t.Error("it grew beyond what there is")
		}
		d.checkModel()
	}
}

func TestTheSmallestVolumeThatItsUserEncryptsHoldsItsFileSystemBesidesTheHeader(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup(testGroup, testExtent, 128)
	d := m.start(t)
	r := kept(fsRequest("pvc-1", 0, "xfs"))
	r.RequiredBytes = 1
	if v := d.create(r); v.GetSizeBytes() != 300<<20 {
		t.Errorf("it has %d bytes", v.GetSizeBytes())
	}
}

func TestWhatAVolumeThatItsUserEncryptsCannotHave(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(kept(request("pvc-1", 2)))
	for what, r := range map[string]*lvmdv1.CreateVolumeRequest{
		"a profile":      {Profile: "scratch", Encryption: names.EncryptionLUKS},
		"a source":       {Source: &lvmdv1.VolumeSource{VolumeId: v.GetId()}, Encryption: names.EncryptionLUKS},
		"being a source": {Source: &lvmdv1.VolumeSource{VolumeId: v.GetId()}},
	} {
		r.Name, r.RequiredBytes, r.Mode, r.FsType = "pvc-2", testExtent, lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, "ext4"
		_, err := d.client.CreateVolume(t.Context(), r)
		t.Log(what, err)
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	}
}

func (d *daemon) holdsPattern(id string, at int64) bool {
	d.t.Helper()
	h := must.Get(d.machine.fake.OpenInUse(testGroup, id))(d.t)
	defer h.Close()
	b := make([]byte, 4096)
	must.Get(h.ReadAt(b, at))(d.t)
	return b[0] == 0x77
}

func TestWhereTheHeaderWillBeNothingOfAnEarlierTenantIsLeft(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, wipe: none}\n"
	d := m.start(t)
	old := d.create(request("pvc-1", testTotal))
	must.Succeed(t, m.fake.Fill(testGroup, old.GetId(), 0x77))
	d.delete(old.GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == testTotal })
	v := d.create(kept(fsRequest("pvc-2", 8, "ext4")))
	end := v.GetSizeBytes() + luks.HeaderBytes
	for at, want := range map[int64]bool{0: false, luks.HeaderBytes - 4096: false, luks.HeaderBytes + 4096: true, end - 4096: false} {
		if got := d.holdsPattern(v.GetId(), at); got != want {
			t.Errorf("at %d the earlier tenant's bytes are there: %t", at, got)
		}
	}
}

func TestTheHeaderOfADeletedVolumeIsErasedFirstWhateverItsClassSays(t *testing.T) {
	for name, config := range map[string]string{
		"none": "- {name: local, default: true, volumeGroup: carve, wipe: none}\n", "discard": "- {name: local, default: true, volumeGroup: carve, wipe: discard}\n",
		"auto": oneClass, "thin": "",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.config = config
			if name == "thin" {
				m = thinMachine(t, "size: 40Mi, overprovisioning: 2")
			}
			d := m.start(t)
			v := d.create(kept(request("pvc-1", 4)))
			must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x77))
			erased := make(chan [2]int64, 100)
			m.fake.BeforeZero = func(_, _ string, off, length int64) error {
				select {
				case erased <- [2]int64{off, length}:
				default:
				}
				return nil
			}
			d.delete(v.GetId())
			if first := <-erased; first != [2]int64{0, luks.HeaderBytes} {
				t.Errorf("the first that is overwritten is %v", first)
			}
			waittest.Until(t, "it is gone", func() bool { return len(d.list()) == 0 })
			d.checkModel()
		})
	}
}

func TestALostJournalLosesNoVolumeThatItsUserEncrypted(t *testing.T) {
	for name, test := range map[string]struct {
		noted bool // by the node plugin, before the journal was lost
		state luks.State
		err   error
		want  lvmdv1.VolumeState
		// encrypted means that a zeroed header counts as lost.
		encrypted bool
	}{
		"one without a user":          {false, luks.Blank, nil, lvmdv1.VolumeState_VOLUME_STATE_READY, false},
		"one in the making":           {false, luks.Making, nil, lvmdv1.VolumeState_VOLUME_STATE_READY, false},
		"one with data":               {false, luks.Made, nil, lvmdv1.VolumeState_VOLUME_STATE_READY, true},
		"one that lost its header":    {true, luks.Blank, nil, lvmdv1.VolumeState_VOLUME_STATE_READY, true},
		"one that cannot be read":     {true, luks.Blank, os.ErrPermission, lvmdv1.VolumeState_VOLUME_STATE_READY, true},
		"what lay there before":       {false, luks.Blank, luks.ErrForeign, lvmdv1.VolumeState_VOLUME_STATE_CREATING, false},
		"something that is no header": {false, luks.Blank, luks.ErrDamaged, lvmdv1.VolumeState_VOLUME_STATE_CREATING, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			v := d.create(kept(fsRequest("pvc-1", 4, "ext4")))
			if test.noted {
				must.Get(d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()}))(t)
			} else {
				m.untagged(t, v.GetId())
			}
			d.stop()
			m.loseJournal(t)
			m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
				t.Errorf("%s is cleared", volume)
				return nil
			}
			d = m.start(t, inspects(test.state, test.err))
			if all := d.list(); len(all) != 1 || all[0].GetId() != v.GetId() || all[0].GetState() != test.want || all[0].GetSizeBytes() != v.GetSizeBytes() {
				t.Errorf("volumes %v", all)
			} else if all[0].GetEncrypted() != test.encrypted {
				t.Errorf("it is known to be encrypted: %t", all[0].GetEncrypted())
			}
		})
	}
}

func (m *machine) tagged(t *testing.T, id string) bool {
	t.Helper()
	groups := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)
	return slices.Contains(groups[0].Volume(id).Tags, spec.TagEncrypted)
}

func TestAtTheStartHeadersAreNotedThatNothingHasNoted(t *testing.T) {
	for name, test := range map[string]struct {
		before func(m *machine, d *daemon, id string, full *atomic.Bool)
		state  luks.State
		err    error
		want   bool
	}{
		"by an older node plugin": {nil, luks.Made, nil, true},
		"but in the journal, by an older lvmd": {func(m *machine, d *daemon, id string, _ *atomic.Bool) {
			must.Get(d.client.NoteEncrypted(d.t.Context(), &lvmdv1.NoteEncryptedRequest{Id: id}))(d.t)
			must.Succeed(d.t, m.fake.Untag(d.t.Context(), testGroup, []string{id}, spec.TagEncrypted))
		}, luks.Blank, nil, true},
		"but in the journal, as the group took no tag": {func(_ *machine, d *daemon, id string, full *atomic.Bool) {
			full.Store(true)
			must.Get(d.client.NoteEncrypted(d.t.Context(), &lvmdv1.NoteEncryptedRequest{Id: id}))(d.t)
			full.Store(false)
		}, luks.Blank, nil, true},
		"of a volume without a journal": {func(m *machine, d *daemon, _ string, _ *atomic.Bool) { d.stop(); m.loseJournal(d.t) }, luks.Made, nil, true},
		"as there is none":              {nil, luks.Blank, nil, false},
		"as it is not complete":         {nil, luks.Making, nil, false},
		"as it is another volume's":     {nil, luks.Blank, luks.ErrForeign, false},
		"as the disk does not answer":   {nil, luks.Blank, os.ErrDeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			var full atomic.Bool
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpTag && full.Load() {
					return lvm.ErrNoSpace
				}
				return nil
			}
			d := m.start(t)
			v := d.create(kept(request("pvc-1", 4)))
			if test.before != nil {
				test.before(m, d, v.GetId(), &full)
			}
			if !d.ended() {
				d.stop()
			}
			d = m.start(t, inspects(test.state, test.err))
			if !test.want {
				d.headers.noteFound(t.Context(), d.groups.All()[testGroup]) // run the start's check to its end
				if got := d.ready("pvc-1"); got.GetEncrypted() || m.tagged(t, v.GetId()) {
					t.Errorf("it is noted: %v", got)
				}
				return
			}
			waittest.Until(t, "it is noted", func() bool { return d.ready("pvc-1").GetEncrypted() && m.tagged(t, v.GetId()) })
			// From now on the tag survives any loss.
			d.stop()
			m.loseJournal(t)
			d = m.start(t, inspects(luks.Blank, nil))
			if !d.ready("pvc-1").GetEncrypted() {
				t.Error("it was noted, and is not known any more")
			}
			d.delete(v.GetId())
			d.checkClean()
		})
	}
}

// lvmd must serve and stop without the header.
func TestADiskThatDoesNotGiveAHeaderHoldsNothingUp(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	d.create(kept(request("pvc-1", 4)))
	d.stop()
	asked, answer := make(chan struct{}), make(chan struct{})
	defer close(answer)
	d = m.start(t, func(_ *daemon, o *Options) {
		o.Inspect = func(string, string) (luks.State, error) {
			close(asked)
			<-answer
			return luks.Made, nil
		}
	})
	<-asked
	d.create(request("pvc-2", 4))
	d.stop()
}
