//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func sealed(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Encryption = names.EncryptionEphemeral
	return r
}

func (d *daemon) reboot() {
	d.stop()
	d.machine.fake.Deactivate()
}

func (d *daemon) ready(name string) (v *lvmdv1.Volume) {
	d.t.Helper()
	waittest.Until(d.t, "volume "+name+" is ready", func() bool {
		resp, err := d.client.GetVolume(d.t.Context(), &lvmdv1.GetVolumeRequest{Name: name})
		v = resp.GetVolume()
		return err == nil && v.GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY && v.GetDevicePath() != ""
	})
	return v
}

func TestAnEncryptedVolumeIsGivenOutWithTheDeviceThatShowsPlainText(t *testing.T) {
	for _, r := range []*lvmdv1.CreateVolumeRequest{
		sealed(fsRequest("pvc-1", 4, "ext4")), sealed(fsRequest("pvc-2", 75, "xfs")), sealed(request("pvc-3", 4)),
	} {
		m := newMachine(t)
		m.fake.AddGroup(testGroup, testExtent, 128)
		d := m.start(t)
		v := d.create(r)
		path := "/dev/mapper/carve.crypt." + v.GetId()
		if v.GetDevicePath() != path || v.GetEncryption() != names.EncryptionEphemeral || v.GetEmptiedAt() != nil || v.GetSizeBytes() != r.GetRequiredBytes() {
			t.Errorf("volume %v", v)
		}
		if o, formatted := m.formatted[path]; formatted != (r.GetFsType() != "") || string(o.Type) != r.GetFsType() {
			t.Errorf("formatted %t, %+v", formatted, o)
		}
		if len(m.formatted) > 1 || m.fake.Discards(v.GetId()) {
			t.Errorf("formatted %v; discards go through", m.formatted)
		}
		if again := d.create(r); again.GetId() != v.GetId() {
			t.Errorf("the same request made %v", again)
		}
	}
}

func TestRequestsForEncryptedVolumesAreChecked(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("memory", testExtent, 16)
	m.fake.SetDAX("memory", true)
	m.fake.SetDataOffset("memory", 2<<20)
	m.config += "- {name: fast, volumeGroup: memory, medium: pmem}\n"
	d := m.start(t)
	plain := d.create(request("pvc-plain", 2))
	v := d.create(sealed(request("pvc-1", 2)))
	for what, change := range map[string]func(r *lvmdv1.CreateVolumeRequest){
		"an unknown kind":             func(r *lvmdv1.CreateVolumeRequest) { r.Encryption = "rot13" },
		"discards without encryption": func(r *lvmdv1.CreateVolumeRequest) { r.Encryption, r.EncryptionDiscards = "", true },
		"a source": func(r *lvmdv1.CreateVolumeRequest) {
			r.Source = &lvmdv1.VolumeSource{VolumeId: plain.GetId()}
		},
		"an encrypted source": func(r *lvmdv1.CreateVolumeRequest) {
			r.Encryption, r.Source = "", &lvmdv1.VolumeSource{VolumeId: v.GetId()}
		},
		"files mapped into memory": func(r *lvmdv1.CreateVolumeRequest) {
			r.DeviceClass, r.Mode = "fast", lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM
		},
	} {
		r := sealed(request("pvc-2", 2))
		change(r)
		_, err := d.client.CreateVolume(t.Context(), r)
		t.Log(what, err)
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	}
	for _, r := range []*lvmdv1.CreateVolumeRequest{request("pvc-1", 2), {
		Name: "pvc-1", RequiredBytes: 2 * testExtent, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, Encryption: names.EncryptionEphemeral,
		EncryptionDiscards: true, Owner: &lvmdv1.Owner{ClusterId: "cluster"},
	}} {
		_, err := d.client.CreateVolume(t.Context(), r)
		wantCode(t, err, codes.AlreadyExists, names.ReasonRequestDiffers)
	}
	onMemory := sealed(inClass(request("pvc-3", 2), "fast"))
	onMemory.EncryptionDiscards = true
	if v := d.create(onMemory); !m.fake.Discards(v.GetId()) {
		t.Error("discards do not go through")
	}
}

func TestAnEncryptedThinVolumeHasNoSnapshotsAndTakesTheKeyAlong(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	d := m.start(t)
	v := d.create(sealed(request("pvc-1", 2)))
	_, err := d.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.GetId()})
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	d.delete(v.GetId())
	waittest.Until(t, "it is removed", func() bool { return m.fake.Commands(lvmfake.OpRemove) > 0 })
	d.checkModel()
}

func TestTheKeyOfADeletedVolumeIsGoneBeforeTheAnswer(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		t.Errorf("%s is wiped", volume)
		return nil
	}
	v := d.create(sealed(fsRequest("pvc-1", 4, "ext4")))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 7))
	d.delete(v.GetId())
	if left, err := m.fake.Encrypted(); err != nil || len(left) > 0 {
		t.Errorf("encrypted are %q still, error %v", left, err)
	}
	waittest.Until(t, "all space is back", func() bool { return d.available() == testTotal })
	m.fake.BeforeZero = nil
	// It leaves noise, so a raw volume there must be cleared.
	raw := d.create(request("pvc-2", testTotal))
	if n, pattern, err := m.fake.Traces(testGroup, raw.GetId()); err != nil || n > 0 {
		t.Errorf("a raw volume shows %d blocks of %#x, error %v", n, pattern, err)
	}
}

func TestAnEncryptedVolumeInUseIsNotDeleted(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(sealed(fsRequest("pvc-1", 4, "ext4")))
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	m.fake.Unmount(testGroup, v.GetId())
	d.delete(v.GetId())
	d.checkClean()
}

func TestAnEncryptedVolumeGrowsAsItsDeviceDoes(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(sealed(request("pvc-1", 4)))
	grow := func(d *daemon, extents int64) error {
		_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: extents * testExtent})
		return err
	}
	wantSize := func(extents int64) {
		t.Helper()
		h := must.Get(m.fake.OpenCrypt(v.GetId()))(t)
		defer h.Close()
		if h.Size() != extents*testExtent {
			t.Errorf("the device has %d extents, want %d", h.Size()/testExtent, extents)
		}
	}
	must.Succeed(t, grow(d, 6))
	wantSize(6)
	m.fake.After = func(op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtend {
			return errors.New("the answer is lost")
		}
		return nil
	}
	if err := grow(d, 8); err == nil {
		t.Error("an expansion succeeds that LVM failed")
	}
	m.fake.After = nil
	must.Succeed(t, grow(d, 8))
	wantSize(8)
	must.Succeed(t, m.fake.Extend(t.Context(), testGroup, v.GetId(), 9))
	d.stop()
	m.start(t)
	waittest.Until(t, "the device has grown", func() bool {
		h, err := m.fake.OpenCrypt(v.GetId())
		if err != nil {
			return false
		}
		defer h.Close()
		return h.Size() == 9*testExtent
	})
}

func TestAfterARestartOfLvmdAnEncryptedVolumeIsAsItWas(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	before := d.create(sealed(fsRequest("pvc-1", 4, "ext4")))
	must.Succeed(t, m.fake.Fill(testGroup, before.GetId(), 7))
	d.stop()
	d = m.start(t)
	after := d.ready("pvc-1")
	if after.GetDevicePath() != before.GetDevicePath() || after.GetDeviceMinor() != before.GetDeviceMinor() || after.GetEmptiedAt() != nil {
		t.Errorf("volume %v, was %v", after, before)
	}
	if n, pattern, err := m.fake.Traces(testGroup, after.GetId()); n == 0 || pattern != 7 || err != nil {
		t.Errorf("%d blocks of %#x, error %v", n, pattern, err)
	}
}

func TestAfterARebootAnEncryptedVolumeIsEmptyFormattedAndSaysSo(t *testing.T) {
	for _, journal := range []string{"kept", "lost"} {
		t.Run("the journal is "+journal, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			before := d.create(sealed(fsRequest("pvc-1", 4, "ext4")))
			raw := d.create(sealed(request("pvc-2", 4)))
			plain := d.create(request("pvc-3", 4))
			for _, v := range []*lvmdv1.Volume{before, raw, plain} {
				must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 7))
			}
			d.reboot()
			delete(m.formatted, before.GetDevicePath())
			if journal == "lost" {
				m.state = stateDir(t)
			}
			begun := time.Now().Add(-time.Second)
			d = m.start(t)
			for _, was := range []*lvmdv1.Volume{before, raw} {
				v := d.ready(was.GetName())
				if v.GetId() != was.GetId() || v.GetDeviceMinor() == was.GetDeviceMinor() || v.GetEmptiedAt().AsTime().Before(begun) || len(v.GetConditions()) > 0 {
					t.Errorf("volume %v, was %v", v, was)
				}
				if n, pattern, err := m.fake.Traces(testGroup, v.GetId()); n > 0 || err != nil {
					t.Errorf("%d blocks of %#x, error %v", n, pattern, err)
				}
			}
			if _, formatted := m.formatted[before.GetDevicePath()]; !formatted {
				t.Error("it is not formatted")
			}
			if v := d.ready("pvc-3"); v.GetEmptiedAt() != nil {
				t.Errorf("volume %v", v)
			}
			if n, _, _ := m.fake.Traces(testGroup, plain.GetId()); n == 0 {
				t.Error("a volume that is not encrypted lost what it held")
			}
			// The loss is reported once, and still after the next start.
			lost := d.ready("pvc-1").GetEmptiedAt().AsTime()
			d.stop()
			d = m.start(t)
			if again := d.ready("pvc-1").GetEmptiedAt().AsTime(); journal == "kept" && !again.Equal(lost) {
				t.Errorf("data lost at %v, then at %v", lost, again)
			}
		})
	}
}

func TestAVolumeThatCannotBeReformattedIsNotGivenOutUntilItCan(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(sealed(fsRequest("pvc-1", 4, "ext4")))
	d.reboot()
	failing := make(chan struct{})
	m.formatHook = func(context.Context, string) error {
		select {
		case <-failing:
			return nil
		default:
			return errors.New("mkfs fails")
		}
	}
	d = m.start(t)
	waittest.Until(t, "it is known to be lost", func() bool {
		resp, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
		return err == nil && resp.GetVolume().GetState() == lvmdv1.VolumeState_VOLUME_STATE_CREATING
	})
	if resp, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}); err != nil || resp.GetVolume().GetDevicePath() != "" {
		t.Errorf("volume %v, error %v", resp.GetVolume(), err)
	}
	close(failing)
	if d.ready("pvc-1").GetEmptiedAt() == nil {
		t.Error("it does not say that it lost its data")
	}
	d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
	d.checkClean()
}

func TestKilledWhileVolumesAreReformatted(t *testing.T) {
	for at := 1; ; at++ {
		m := newMachine(t)
		d := m.start(t)
		was := d.create(sealed(fsRequest("e", 4, "ext4")))
		must.Succeed(t, m.fake.Fill(testGroup, was.GetId(), 7))
		raw := d.create(sealed(request("f", 4)))
		d.reboot()
		delete(m.formatted, was.GetDevicePath()) // It reads as noise with another key.
		var formats atomic.Int64
		m.formatHook = func(context.Context, string) error { formats.Add(1); return nil }
		survived := false
		between, err := m.tryStart(t, func(d *daemon, _ *Options) { d.gate.crashAt, d.gate.done = at, make(chan struct{}) })
		if err == nil {
			done := func() bool {
				known := between.inventory.Inspect()
				return !slices.ContainsFunc([]string{was.GetId(), raw.GetId()}, func(id string) bool {
					v := known[id]
					return v.Record.Phase != spec.Ready || v.Device.Path == "" || v.Record.Reformatted.IsZero() || v.Busy
				})
			}
			for !between.gate.crashed.Load() && !done() {
				time.Sleep(time.Millisecond)
			}
			survived = !between.gate.crashed.Load()
			between.kill()
		}
		d = m.start(t)
		for _, name := range []string{"e", "f"} {
			if v := d.ready(name); v.GetEmptiedAt() == nil {
				t.Errorf("volume %v does not say that it lost its data", v)
			}
		}
		if formats.Load() == 0 {
			t.Error("it was not formatted")
		}
		if n, _, err := m.fake.Traces(testGroup, was.GetId()); n > 0 || err != nil {
			t.Errorf("it shows %d blocks, error %v", n, err)
		}
		for _, name := range []string{"e", "f"} {
			d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Name: name})
		}
		d.checkClean()
		if left, err := m.fake.Encrypted(); err != nil || len(left) > 0 {
			t.Errorf("left: %q, error %v", left, err)
		}
		d.stop()
		if t.Failed() {
			t.Fatalf("crashed at place %d, %q", at, between.gate.point)
		}
		if survived {
			if at < 8 {
				t.Errorf("only %d crash points", at-1)
			}
			return
		}
	}
}

func TestAnEncryptedVolumeThatAnotherProgramRemovedIsForgotten(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(sealed(request("pvc-1", 4)))
	d.stop()
	must.Succeed(t, errors.Join(m.fake.ForgetKey(v.GetId()), m.fake.Remove(t.Context(), testGroup, []string{v.GetId()})))
	d = m.start(t)
	if all := d.list(); len(all) > 0 {
		t.Errorf("volumes %v", all)
	}
	d.checkClean()
}

func TestTagsSayHowAVolumeIsEncrypted(t *testing.T) {
	for _, want := range []spec.Identity{
		{Name: "a", Class: "c", Block: true, Encryption: names.EncryptionEphemeral},
		{Name: "a", Class: "c", Block: true, Encryption: names.EncryptionEphemeral, Discards: true},
	} {
		got, err := spec.FromTags(want.Tags())
		if err != nil || got != want || !spec.AreEncrypted(want.Tags()) {
			t.Errorf("%+v became %+v, error %v", want, got, err)
		}
		for _, tag := range want.Tags() {
			if !ondisk.ValidTag(tag) {
				t.Errorf("tag %q", tag)
			}
		}
	}
}
