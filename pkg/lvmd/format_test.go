//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/waittest"
)

func settingsRequest(name string, settings map[string]string) *lvmdv1.CreateVolumeRequest {
	r := fsRequest(name, 8, "ext4")
	r.FsSettings = settings
	return r
}

func TestFileSystemsAreMadeAsTheRequestSays(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	r := settingsRequest("a", map[string]string{"label": "cache", "block-size": "1Ki"})
	r.Profile = "scratch"
	v := d.create(r)
	want := filesystem.FormatOptions{Type: filesystem.Ext4, UUID: v.GetFsUuid(), Profile: filesystem.Scratch, Settings: "block-size=1024,label=cache"}
	if got := m.formatted[v.GetDevicePath()]; got != want || v.GetFsUuid() == "" {
		t.Errorf("made with %+v, want %+v", got, want)
	}
	if v.GetProfile() != "scratch" || len(v.GetFsSettings()) != 2 || v.GetFsSettings()["block-size"] != "1024" {
		t.Errorf("it is reported as %v", v)
	}
	again := settingsRequest("a", map[string]string{"label": "cache", "block-size": "1024"})
	again.Profile = "scratch"
	if got := d.create(again); got.GetId() != v.GetId() {
		t.Errorf("a retry made %v", got)
	}
	d.stop()
	m.loseJournal(t)
	d = m.start(t)
	if got := d.create(r); got.GetId() != v.GetId() || got.GetProfile() != "scratch" || got.GetFsSettings()["label"] != "cache" {
		t.Errorf("after the journal was lost: %v", got)
	}
	for what, other := range map[string]*lvmdv1.CreateVolumeRequest{
		`profile is "scratch", asked for ""`: settingsRequest("a", map[string]string{"label": "cache", "block-size": "1024"}),
		`fs_settings is "block-size=1024,label=cache", asked for "label=cache"`: func() *lvmdv1.CreateVolumeRequest {
			r := settingsRequest("a", map[string]string{"label": "cache"})
			r.Profile = "scratch"
			return r
		}(),
	} {
		_, err := d.client.CreateVolume(t.Context(), other)
		wantCode(t, err, codes.AlreadyExists, names.ReasonRequestDiffers)
		if err != nil && !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
}

func TestRequestsForFileSystemsAreChecked(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("memory", testExtent, 64)
	m.fake.SetDAX("memory", true)
	m.fake.SetDataOffset("memory", 2<<20)
	m.config += "- {name: fast, volumeGroup: memory, medium: pmem}\n"
	d := m.start(t)
	plain := d.create(fsRequest("plain", 8, "ext4"))
	scratch := fsRequest("scratch", 8, "ext4")
	scratch.Profile = "scratch"
	source := d.create(scratch)
	for words, change := range map[string]func(r *lvmdv1.CreateVolumeRequest){
		`file system "ntfs" is not supported: allowed are btrfs, ext4, xfs`: func(r *lvmdv1.CreateVolumeRequest) { r.FsType = "ntfs" },
		`profile "fast" is not known: allowed is scratch`:                   func(r *lvmdv1.CreateVolumeRequest) { r.Profile = "fast" },
		"profile scratch cannot be had with xfs":                            func(r *lvmdv1.CreateVolumeRequest) { r.FsType, r.Profile = "xfs", "scratch" },
		`setting "node-size" is not allowed for ext4`:                       func(r *lvmdv1.CreateVolumeRequest) { r.FsSettings = map[string]string{"node-size": "4096"} },
		`setting "label=a b" is not allowed for ext4`:                       func(r *lvmdv1.CreateVolumeRequest) { r.FsSettings = map[string]string{"label": "a b"} },
		"file system btrfs cannot be used on persistent memory":             func(r *lvmdv1.CreateVolumeRequest) { r.DeviceClass, r.FsType = "fast", "btrfs" },
		`setting "block-size=1024" is not allowed for ext4 on persistent memory`: func(r *lvmdv1.CreateVolumeRequest) {
			r.DeviceClass, r.FsSettings = "fast", map[string]string{"block-size": "1024"}
		},
		`"scratch" given together with a source`:                   func(r *lvmdv1.CreateVolumeRequest) { r.Profile = "scratch"; from(r, plain.GetId()) },
		"is of profile scratch: it has no snapshots and no clones": func(r *lvmdv1.CreateVolumeRequest) { from(r, source.GetId()) },
		`profile "scratch" or fs_settings given for a BLOCK volume`: func(r *lvmdv1.CreateVolumeRequest) {
			r.FsType, r.Mode, r.Profile = "", lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, "scratch"
		},
	} {
		r := fsRequest("b", 8, "ext4")
		change(r)
		_, err := d.client.CreateVolume(t.Context(), r)
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
		if err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	if n := len(d.list()); n != 2 {
		t.Errorf("there are %d volumes", n)
	}
}

func TestAScratchVolumeHasNoSnapshots(t *testing.T) {
	d := snapshotMachine(t).start(t)
	r := fsRequest("a", 8, "ext4")
	r.Profile = "scratch"
	v := d.create(r)
	_, err := d.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.GetId()})
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
}

func TestAStrayFileSystemIsNotTakenForTheVolumes(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(fsRequest("a", 8, "ext4"))
	m.untagged(t, v.GetId())
	d.stop()
	// As if its own was damaged, on a disk with old data.
	m.loseJournal(t)
	m.mu.Lock()
	m.formatted[v.GetDevicePath()] = filesystem.FormatOptions{Type: filesystem.Ext4, UUID: "01234567-89ab-cdef-0123-456789abcdef"}
	m.mu.Unlock()
	d = m.start(t)
	if got := d.list(); len(got) != 1 || got[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
		t.Fatalf("it is handed out: %v", got)
	}
	_, err := d.client.CreateVolume(t.Context(), fsRequest("a", 8, "ext4"))
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
	if m.formatted[v.GetDevicePath()].UUID == v.GetFsUuid() {
		t.Error("it is formatted again")
	}
}

func TestAClonedBtrfsGetsAUUIDOfItsOwn(t *testing.T) {
	var mu sync.Mutex
	set := map[string]string{}
	m := thinMachine(t, "size: 160Mi, overprovisioning: 10, dataThreshold: 100%")
	d := m.start(t, func(_ *daemon, o *Options) {
		o.SetUUID = func(device string, _ filesystem.Type, uuid string) error {
			mu.Lock()
			defer mu.Unlock()
			set[device] = uuid
			return nil
		}
	})
	for _, fsType := range []string{"ext4", "btrfs"} {
		v := d.create(fsRequest("source-"+fsType, 32, fsType))
		s := d.snapshot("snapshot-"+fsType, v.GetId())
		for name, source := range map[string]string{"clone-": v.GetId(), "restore-": s.GetId()} {
			c := d.create(from(fsRequest(name+fsType, 32, fsType), source))
			if own := c.GetFsUuid() != v.GetFsUuid(); own != (fsType == "btrfs") || own && set[c.GetDevicePath()] != c.GetFsUuid() || !own && set[c.GetDevicePath()] != "" {
				t.Errorf("%s%s: UUID %s, its source's %s, set %q", name, fsType, c.GetFsUuid(), v.GetFsUuid(), set)
			}
		}
	}
}

func TestWhatMkfsRefusesForTheSettingsIsTheRequestsFault(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	set := map[string]string{"bytes-per-inode": "64Ki"}
	for _, c := range []struct {
		settings map[string]string
		cause    error
		exit     int
		code     codes.Code
		reason   string
	}{
		{set, errors.New("exit status 1"), 1, codes.InvalidArgument, names.ReasonFormatRefused},
		{nil, errors.New("exit status 1"), 1, codes.Internal, names.ReasonCommandFailed},
		{set, syscall.EIO, 1, codes.Unavailable, names.ReasonDeviceMissing},
		{set, errors.New("killed"), -1, codes.Internal, names.ReasonCommandFailed},
	} {
		m.formatHook = func(context.Context, string) error {
			return &filesystem.CommandError{Args: []string{"mkfs.ext4"}, ExitCode: c.exit, Output: "not so\nUsage: mkfs", Err: c.cause}
		}
		_, err := d.client.CreateVolume(t.Context(), settingsRequest("a", c.settings))
		wantCode(t, err, c.code, c.reason)
		if message := status.Convert(err).Message(); !strings.Contains(message, "not so") || strings.Contains(message, "Usage") {
			t.Errorf("the message is %q", message)
		}
	}
}

func TestBlocksSmallerThanSectorsAreRefusedBeforeAnythingIsMade(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, func(_ *daemon, o *Options) { o.sectorSize = func(string) (int64, error) { return 4096, nil } })
	made := 0
	m.formatHook = func(context.Context, string) error { made++; return nil }
	_, err := d.client.CreateVolume(t.Context(), settingsRequest("a", map[string]string{"block-size": "2Ki"}))
	// Another node may have other disks.
	wantCode(t, err, codes.InvalidArgument, names.ReasonFormatRefused)
	if message := status.Convert(err).Message(); made > 0 || !strings.Contains(message,
		`setting "block-size=2048" is not allowed for ext4 on disks with sectors of 4096 bytes: allowed are 4096; correct the parameter carve.csi.local/mkfs-block-size`) {
		t.Errorf("formatted %d times: %q", made, message)
	}
	d.create(settingsRequest("a", map[string]string{"block-size": "4Ki"}))
}

// The group has more volumes than places.
func TestAGroupWhoseFileSystemsAreNotMadeHoldsUpNoOther(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("second", testExtent, testTotal)
	m.config += "- {name: second, volumeGroup: second}\n"
	answers, waiting := make(chan struct{}), atomic.Int32{}
	m.formatHook = func(_ context.Context, device string) error {
		if strings.HasPrefix(device, "/dev/"+testGroup+"/") {
			waiting.Add(1)
			<-answers
		}
		return nil
	}
	d := m.start(t)
	var creating sync.WaitGroup
	for i := range maxFormatting + 1 {
		creating.Go(func() {
			if _, err := d.client.CreateVolume(t.Context(), fsRequest(fmt.Sprintf("stuck-%d", i), 4, "ext4")); err != nil {
				t.Error(err)
			}
		})
	}
	waittest.Until(t, "all places of the group are taken", func() bool { return waiting.Load() == maxFormatting })
	r := fsRequest("other", 4, "ext4")
	r.DeviceClass = "second"
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	defer cancel()
	if _, err := d.client.CreateVolume(ctx, r); err != nil {
		t.Errorf("in the other group: %v", err)
	}
	if n := waiting.Load(); n != maxFormatting {
		t.Errorf("%d file systems are made at once in a group, want %d", n, maxFormatting)
	}
	close(answers)
	creating.Wait()
}

func TestADiskWhereFileSystemsAreNotMadeHoldsUpNoOtherOfItsGroup(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroupOf("second", testExtent, testTotal, testTotal)
	m.config += "- {name: second, volumeGroup: second}\n"
	answers, waiting, done := make(chan struct{}), atomic.Int32{}, atomic.Int32{}
	m.formatHook = func(_ context.Context, device string) error {
		segments, err := m.fake.Mapping("second", filepath.Base(device))
		if err == nil && segments[0].Areas[0].Device == "fake-pv-second-0" {
			waiting.Add(1)
			<-answers
		}
		return err
	}
	d := m.start(t)
	answer := sync.OnceFunc(func() { close(answers) })
	t.Cleanup(answer) // before the daemon's end, which waits for it
	var creating sync.WaitGroup
	create := func(n int) {
		creating.Go(func() {
			r := fsRequest(fmt.Sprintf("v-%d", n), 4, "ext4")
			r.DeviceClass = "second"
			if _, err := d.client.CreateVolume(t.Context(), r); err != nil {
				t.Errorf("%s: %v", r.GetName(), err)
			}
			done.Add(1)
		})
	}
	// LVM allocates from the disks in turn.
	for n := range 2 * maxFormatting {
		create(n)
	}
	waittest.Until(t, "all places of the first disk are taken", func() bool { return waiting.Load() == maxFormatting })
	for n := range 2 {
		create(2*maxFormatting + n)
	}
	waittest.Until(t, "all on the second disk are made", func() bool { return done.Load() == maxFormatting+1 })
	if n := waiting.Load(); n != maxFormatting {
		t.Errorf("%d file systems are made at once on a disk, want %d", n, maxFormatting)
	}
	answer()
	creating.Wait()
}
