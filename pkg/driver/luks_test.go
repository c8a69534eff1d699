package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// locked creates a LUKS volume and passes its key with each stage from now on.
func (f *kubelet) locked(name, fsType string) *lvmdv1.Volume {
	f.t.Helper()
	f.secrets = map[string]string{"key": "hunter2"}
	r := &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: f.size, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: fsType, Encryption: "luks"}
	if fsType == "" {
		r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	got := must.Get(f.machine.LVMD.CreateVolume(context.Background(), r))(f.t)
	return got.GetVolume()
}

func (f *kubelet) mapping(v *lvmdv1.Volume) mount.Device {
	f.t.Helper()
	m, there, err := f.machine.LUKS.Mapping(v.GetId())
	if err != nil || !there || !m.Whole {
		f.t.Errorf("mapping %+v, there %t, error %v", m, there, err)
	}
	return mount.Device{Major: m.Major, Minor: m.Minor}
}

func (f *kubelet) wantLocked(v *lvmdv1.Volume) {
	f.t.Helper()
	if m, there, err := f.machine.LUKS.Mapping(v.GetId()); err != nil || there {
		f.t.Errorf("mapping %+v is there, error %v", m, err)
	}
}

func (f *fixture) wantState(v *lvmdv1.Volume, want luks.State) {
	f.t.Helper()
	if got, err := f.luks.Inspect(v.GetDevicePath(), v.GetId()); err != nil || got != want {
		f.t.Errorf("the volume is %v, error %v; want %v", got, err, want)
	}
}

func (f *fixture) wantCalls(want string) {
	f.t.Helper()
	if got := strings.Join(f.luks.Calls(), " "); got != want {
		f.t.Errorf("calls %q, want %q", got, want)
	}
}

func TestTheFirstStageMakesAVolumeWithAKeptKeyAndOthersOpenIt(t *testing.T) {
	f := newFixture(t)
	v := f.alter(f.locked("a", "xfs"), func(v *lvmdv1.Volume) {
		v.FsSettings, v.EncryptionDiscards = map[string]string{"label": "kept"}, true
	})
	for range 2 {
		must.Succeed(f.t, f.stage(v, access(v)))
		must.Succeed(f.t, f.publish(v, "pod", access(v), false))
	}
	f.wantCalls("Format Open Finish")
	f.wantState(v, luks.Made)
	f.wantAt(f.staging(v), mount.State{Mounted: true, Device: f.mapping(v)})
	f.wantAt(f.target(v, "pod"), mount.State{Mounted: true, Device: f.mapping(v)})
	want := filesystem.FormatOptions{Type: filesystem.XFS, UUID: v.GetFsUuid(), Settings: "label=kept"}
	if made := f.fileSystems.Made(luks.Path(v.GetId())); !slices.Equal(made, []filesystem.FormatOptions{want}) || len(f.fileSystems.Made(v.GetDevicePath())) > 0 {
		t.Errorf("made %+v", made)
	}
	if !f.luks.Discards(v.GetId()) {
		t.Error("discards are kept back")
	}
	must.Succeed(f.t, f.unpublish(v, "pod"))
	must.Succeed(f.t, f.unstage(v))
	must.Succeed(f.t, f.unstage(v))
	f.wantLocked(v)
	must.Succeed(f.t, f.stage(v, access(v)))
	f.wantCalls("Format Open Finish Close Open")
	// As after a reboot: the mounts are gone, too.
	must.Succeed(f.t, f.mounts.Unmount(f.staging(v)))
	f.luks.Reboot()
	must.Succeed(f.t, f.stage(v, access(v)))
	f.wantCalls("Format Open Finish Close Open Open")
	if made := f.fileSystems.Made(luks.Path(v.GetId())); len(made) != 1 {
		t.Errorf("made %d times", len(made))
	}
	if log := f.machine.Log.String(); strings.Contains(log, "hunter") {
		t.Errorf("the key is logged: %s", log)
	}
}

func TestARawBlockVolumeWithAKeptKeyIsClearedAndShownThroughItsMapping(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "")
	wantError(t, f.publish(v, "pod", access(v), false), codes.FailedPrecondition, "is not staged")
	must.Succeed(f.t, f.stage(v, access(v)))
	must.Succeed(f.t, f.publish(v, "pod", access(v), false))
	f.wantCalls("Format Open Clear Finish")
	f.wantAt(f.target(v, "pod"), mount.State{Mounted: true, Node: true, Device: f.mapping(v)})
	// Only its mapping shows that it is staged: the key is tested again.
	must.Succeed(f.t, f.stage(v, access(v)))
	f.wantCalls("Format Open Clear Finish Test")
	f.secrets["key"] = "hunter3"
	wantError(t, f.stage(v, access(v)), codes.FailedPrecondition, luks.ErrWrongKey.Error())
	f.wantAt(f.target(v, "pod"), mount.State{Mounted: true, Node: true, Device: f.mapping(v)})
	wantError(t, f.unstage(v), codes.FailedPrecondition, "in use")
	must.Succeed(f.t, f.unpublish(v, "pod"))
	must.Succeed(f.t, f.unstage(v))
	f.wantLocked(v)
	if f.luks.Cleared(luks.Path(v.GetId())) != 1 {
		t.Error("it was cleared again")
	}
}

func TestWithoutItsKeyAVolumeIsNeitherOpenedNorChanged(t *testing.T) {
	for name, test := range map[string]struct {
		secrets map[string]string
		code    codes.Code
		words   string
	}{
		"no Secret":        {nil, codes.InvalidArgument, `secrets[key]: a value is required: volume`},
		"no such entry":    {map[string]string{"passphrase": "hunter2"}, codes.InvalidArgument, `the entry "key" of the Secret`},
		"an empty one":     {map[string]string{"key": ""}, codes.InvalidArgument, "csi.storage.k8s.io/node-stage-secret-name"},
		"one that is huge": {map[string]string{"key": strings.Repeat("x", luks.MaxKey+1)}, codes.InvalidArgument, "the key has 65537 bytes"},
		"another key":      {map[string]string{"key": "hunter3"}, codes.FailedPrecondition, luks.ErrWrongKey.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			v := f.locked("a", "ext4")
			must.Succeed(f.t, f.stage(v, access(v)))
			must.Succeed(f.t, f.unstage(v))
			f.secrets = test.secrets
			for range 2 {
				err := f.stage(v, access(v))
				wantError(t, err, test.code, test.words)
				if strings.Contains(err.Error(), "hunter") {
					t.Errorf("the key is in %v", err)
				}
			}
			f.wantLayers(0)
			f.wantLocked(v)
			f.wantState(v, luks.Made)
			f.secrets = map[string]string{"key": "hunter2"}
			must.Succeed(f.t, f.stage(v, access(v)))
			if made := f.fileSystems.Made(luks.Path(v.GetId())); len(made) != 1 {
				t.Errorf("made %d times", len(made))
			}
		})
	}
}

func TestAHeaderThatIsNotTheVolumesOwnIsLeftAsItIs(t *testing.T) {
	for words, spoil := range map[string]func(*fixture, *lvmdv1.Volume){
		luks.ErrDamaged.Error(): func(f *fixture, v *lvmdv1.Volume) { f.luks.Damage(v.GetDevicePath()) },
		luks.ErrForeign.Error(): func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, f.luks.Format(t.Context(), v.GetDevicePath(), "cvother", []byte("hunter2")))
		},
		"input/output error": func(f *fixture, v *lvmdv1.Volume) { f.luks.Kill(v.GetDevicePath()) },
	} {
		f := newFixture(t)
		v := f.locked("a", "ext4")
		spoil(f, v)
		before := len(f.luks.Calls())
		err := f.stage(v, access(v))
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
		if len(f.luks.Calls()) != before {
			t.Errorf("calls %q", f.luks.Calls())
		}
		f.wantLayers(0)
	}
}

func TestAVolumeThatLostItsHeaderIsNotMadeAgain(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		f := newFixture(t)
		v := f.locked("a", fsType)
		must.Succeed(t, f.stage(v, access(v)))
		must.Succeed(t, f.unstage(v))
		f.luks.Erase(v.GetDevicePath())
		before := len(f.luks.Calls())
		wantError(t, f.stage(v, access(v)), codes.FailedPrecondition, "has lost the header")
		if got := f.luks.Calls(); len(got) != before {
			t.Errorf("file system %q: calls %q, want none after the first %d", fsType, got, before)
		}
		f.wantState(v, luks.Blank)
	}
}

func TestThatAVolumeIsEncryptedIsNotedBeforeItsFirstUser(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "ext4")
	f.mounts.FailMounts(os.ErrPermission)
	wantError(t, f.stage(v, access(v)), codes.Internal, "permission")
	if got := must.Get(f.lvmd.GetVolume(f.ctx(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}))(t); !got.GetVolume().GetEncrypted() {
		t.Error("lvmd does not know it when the volume is mounted")
	}
}

type full struct{ lvmdv1.LVMDServer }

func (full) NoteEncrypted(context.Context, *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error) {
	return nil, status.Error(codes.ResourceExhausted, "the journal is full")
}

func TestWhyLvmdCannotNoteThatAVolumeIsEncryptedIsSaid(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "ext4")
	f.machine.StopLVMD()
	f.machine.LVMD = full{f.machine.LVMD}
	f.machine.StartLVMD()
	err := f.stage(v, access(v))
	wantError(t, err, codes.ResourceExhausted, "lvmd: the journal is full")
	if strings.Contains(status.Convert(err).Message(), "rpc error") {
		t.Errorf("%v has gRPC's own words twice", err)
	}
	f.wantLocked(v)
}

func TestAVolumeWithAnotherEncryptionIsNotUsed(t *testing.T) {
	for _, left := range []bool{false, true} {
		f := newFixture(t)
		v := f.locked("a", "ext4")
		must.Succeed(t, f.stage(v, access(v)))
		must.Succeed(t, f.unstage(v))
		f.luks.Weaken(v.GetDevicePath())
		if left {
			// A killed node plugin had opened it.
			must.Succeed(t, f.luks.Open(f.ctx(), v.GetDevicePath(), v.GetId(), []byte("hunter2"), false))
		}
		wantError(t, f.stage(v, access(v)), codes.FailedPrecondition, luks.ErrForeign.Error())
		f.wantLayers(0)
		f.wantLocked(v)
	}
}

func TestWhatCouldNotBeStagedIsNotLeftOpen(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "ext4")
	f.mounts.FailMounts(os.ErrPermission)
	wantError(t, f.stage(v, access(v)), codes.Internal, "permission")
	f.wantLocked(v)
	f.wantState(v, luks.Made)
	f.mounts.FailMounts(nil)
	f.luks.Interrupt(v.GetDevicePath(), v.GetId())
	must.Succeed(f.t, f.stage(v, access(v)))
	f.wantAt(f.staging(v), mount.State{Mounted: true, Device: f.mapping(v)})
	if made := f.fileSystems.Made(luks.Path(v.GetId())); len(made) != 1 {
		t.Errorf("made %d times", len(made))
	}
}

func TestUnstageOfAVolumeWithAKeptKeyNeedsNoKey(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "ext4")
	must.Succeed(f.t, f.stage(v, access(v)))
	f.lvmd.SetDown(true)
	f.luks.Kill(v.GetDevicePath())
	f.mounts.Kill(f.mapping(v))
	must.Succeed(f.t, f.unstage(v))
	f.wantLayers(0)
	f.wantLocked(v)
}

func TestAVolumeWithAKeptKeyGrowsThroughItsMappingWithoutTheKey(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		f := newFixture(t)
		v := f.locked("a", fsType)
		expand := func() (*csi.NodeExpandVolumeResponse, error) {
			return f.NodeExpandVolume(f.ctx(), &csi.NodeExpandVolumeRequest{
				VolumeId: v.GetId(), VolumePath: f.target(v, "pod"), StagingTargetPath: f.staging(v)})
		}
		wantError(t, second(expand()), codes.FailedPrecondition, "is not staged")
		must.Succeed(f.t, f.stage(v, access(v)))
		must.Succeed(f.t, f.publish(v, "pod", access(v), false))
		_, err := f.machine.LVMD.ExpandVolume(f.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * gib})
		must.Succeed(f.t, err)
		got, err := expand()
		if err != nil || got.GetCapacityBytes() != 2*gib {
			t.Errorf("got %v, %v", got, err)
		}
		if size, err := f.mounts.NodeSize(luks.Path(v.GetId())); err != nil || size != 2*gib {
			t.Errorf("the mapping has %d bytes, error %v", size, err)
		}
		if grown := f.fileSystems.Grown(luks.Path(v.GetId())); (len(grown) == 1) != (fsType != "") {
			t.Errorf("grown through %q", grown)
		}
		stats, err := f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: f.target(v, "pod")})
		if err != nil || stats.GetUsage()[0].GetTotal() != 2*gib {
			t.Errorf("stats %v, error %v", stats, err)
		}
	}
}

func TestTheFileSystemOfAVolumeWithAKeptKeyIsLookedAfter(t *testing.T) {
	f := newFixture(t)
	v := f.locked("a", "ext4")
	health := func() []*csi.VolumeHealth_VolumeHealthEntry {
		got := must.Get(f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId()}))(f.t)
		return got.GetVolumeHealth().GetHealthStatuses()
	}
	if got := health(); len(got) > 0 {
		t.Errorf("locked: %v", got)
	}
	must.Succeed(f.t, f.stage(v, access(v)))
	f.mounts.SetErrors(f.mapping(v), 3)
	if got := health(); len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemErrors {
		t.Errorf("got %v", got)
	}
	f.fileSystems.Set(luks.Path(v.GetId()), filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid(), NeedsCheck: true})
	f.luks.Working = func(context.Context, string) error { panic("reformatted") }
	must.Succeed(f.t, f.unstage(v))
	must.Succeed(f.t, f.stage(v, access(v)))
	if f.fileSystems.Checks(luks.Path(v.GetId())) != 1 {
		t.Error("it was not checked")
	}
}

func TestARetryDuringALongMakingIsAbortedAndDoesNotBeginAnother(t *testing.T) {
	f := newFixture(t)
	v, other := f.locked("a", "ext4"), f.locked("b", "ext4")
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.luks.Working = func(_ context.Context, device string) error {
		if device == v.GetDevicePath() {
			close(begun)
			<-goOn
		}
		return nil
	}
	impatient, cancel := context.WithCancel(f.ctx())
	ended := make(chan error, 1)
	go func() {
		ended <- second(f.NodeStageVolume(impatient, &csi.NodeStageVolumeRequest{
			VolumeId: v.GetId(), StagingTargetPath: f.staging(v), VolumeCapability: access(v), Secrets: f.secrets}))
	}()
	<-begun
	cancel()
	wantError(t, <-ended, codes.Canceled, "")
	wantError(t, f.stage(v, access(v)), codes.Aborted, "another operation")
	must.Succeed(f.t, f.stage(other, access(other)))
	close(goOn)
	waittest.Succeeds(t, "the volume is staged", func() error { return f.stage(v, access(v)) })
	f.wantCalls("Format Open Finish Format Open Finish")
	f.wantLayers(2)
}

func TestSweepClosesWhatNoKubeletKnowsOf(t *testing.T) {
	for name, test := range map[string]struct {
		leave func(*fixture, *lvmdv1.Volume)
		kept  bool
		log   string
	}{
		"a mapping of a previous run is closed": {leave: func(*fixture, *lvmdv1.Volume) {}},
		"one whose making was interrupted, too": {leave: func(f *fixture, v *lvmdv1.Volume) {
			f.luks.Reboot()
			f.luks.Interrupt(v.GetDevicePath(), v.GetId())
		}},
		"a mount that leaked goes first": {leave: func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: luks.Path(v.GetId())}, f.places(v).staged, "ext4", nil))
		}},
		"other volumes' records are not its own": {leave: func(f *fixture, v *lvmdv1.Volume) {
			f.record("carve.csi.local/hash", `{"driverName":"carve.csi.local","volumeHandle":"cvother"}`)
			f.record("volumeDevices/pvc-1/data", `{"driverName":"other.csi","volumeHandle":"`+v.GetId()+`"}`)
		}},
		"a staged volume stays open": {kept: true, leave: func(f *fixture, v *lvmdv1.Volume) {
			f.record("carve.csi.local/hash", `{"driverName":"carve.csi.local","volumeHandle":"`+v.GetId()+`"}`)
		}},
		"a staged raw block volume stays open": {kept: true, leave: func(f *fixture, v *lvmdv1.Volume) {
			f.record("volumeDevices/pvc-1/data", `{"specVolID":"pvc-1","driverName":"carve.csi.local","volumeHandle":"`+v.GetId()+`"}`)
		}},
		"what is in use stays open": {kept: true, log: "stays open", leave: func(f *fixture, v *lvmdv1.Volume) {
			must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: luks.Path(v.GetId())}, f.machine.MakeDir("elsewhere"), "ext4", nil))
		}},
		"nothing is known where no driver has a record": {kept: true, log: "cannot be relied on", leave: func(f *fixture, _ *lvmdv1.Volume) {
			must.Succeed(f.t, os.Remove(f.machine.Path(drivertest.OtherRecord)))
		}},
		"a record that cannot be read may be its own": {kept: true, log: "stays open", leave: func(f *fixture, _ *lvmdv1.Volume) {
			f.record("carve.csi.local/hash", `{"driverName":`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			v := f.locked("a", "ext4")
			must.Succeed(f.t, f.stage(v, access(v)))
			must.Succeed(f.t, f.mounts.Unmount(f.staging(v)))
			test.leave(f, v)
			f.Sweep(t.Context())
			if _, there, err := f.luks.Mapping(v.GetId()); err != nil || there != test.kept {
				t.Errorf("it is there: %t, error %v", there, err)
			}
			if !strings.Contains(f.machine.Log.String(), test.log) {
				t.Errorf("no %q in the log: %s", test.log, f.machine.Log)
			}
		})
	}
}

func (f *kubelet) record(dir, content string) {
	f.t.Helper()
	path := f.machine.Path("plugins", "kubernetes.io", "csi", filepath.FromSlash(dir), "vol_data.json")
	must.Succeed(f.t, os.WriteFile(path, []byte(content), 0o600))
}
