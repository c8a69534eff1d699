//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestACreatedVolumeIsCarvedFormattedAndReported(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	r := fsRequest("pvc-1", 8, "")
	r.RequiredBytes -= 5
	v := d.create(r)
	if !spec.VolumeID.MatchString(v.GetId()) || v.GetName() != "pvc-1" || v.GetDeviceClass() != "local" ||
		v.GetSizeBytes() != 8*testExtent || v.GetFsType() != "ext4" || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY ||
		v.GetDevicePath() != "/dev/carve/"+v.GetId() || v.GetDeviceMajor() == 0 || v.GetVgName() != testGroup ||
		v.GetOwner().GetClaimName() != "claim-pvc-1" || v.GetCreatedAt() == nil || v.GetDax() || len(v.GetConditions()) > 0 {
		t.Errorf("volume %v", v)
	}
	o, ok := m.formatted[v.GetDevicePath()]
	if !ok || o.Type != filesystem.Ext4 || o.UUID == "" || o.DAX {
		t.Errorf("formatted as %+v", o)
	}
	if got := d.available(); got != testTotal-8 {
		t.Errorf("%d extents available", got)
	}
	if got := d.list(); len(got) != 1 || got[0].GetId() != v.GetId() {
		t.Errorf("list %v", got)
	}
	if n := m.fake.Commands(lvmfake.OpCreate) + m.fake.Commands(lvmfake.OpScan); n != 2 {
		t.Errorf("%d commands for the start and a create, want 2", n)
	}
	d.checkModel()
}

func TestTheSameRequestGivesTheSameVolumeAndAnotherNamesTheDifference(t *testing.T) {
	d := newMachine(t).start(t)
	first := d.create(fsRequest("pvc-1", 8, ""))
	if again := d.create(fsRequest("pvc-1", 8, "ext4")); again.GetId() != first.GetId() {
		t.Errorf("another volume: %v", again)
	}
	explicit := fsRequest("pvc-1", 8, "")
	explicit.DeviceClass = "local"
	if again := d.create(explicit); again.GetId() != first.GetId() {
		t.Errorf("another volume: %v", again)
	}
	for _, c := range []struct {
		name   string
		change func(*lvmdv1.CreateVolumeRequest)
		want   string
	}{
		{"size", func(r *lvmdv1.CreateVolumeRequest) { r.RequiredBytes *= 2 }, "required_bytes is 33554432, asked for 67108864"},
		{"limit", func(r *lvmdv1.CreateVolumeRequest) { r.LimitBytes = r.RequiredBytes }, "limit_bytes is 0"},
		{"file system", func(r *lvmdv1.CreateVolumeRequest) { r.FsType = "xfs" }, "fs_type is ext4, asked for xfs"},
		{"mode", func(r *lvmdv1.CreateVolumeRequest) { r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK }, "mode is VOLUME_MODE_FILESYSTEM"},
		{"class", func(r *lvmdv1.CreateVolumeRequest) { r.DeviceClass = "other" }, "device_class is local, asked for other"},
		{"cluster", func(r *lvmdv1.CreateVolumeRequest) { r.Owner.ClusterId = "x" }, "owner.cluster_id is cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := fsRequest("pvc-1", 8, "")
			c.change(r)
			_, err := d.client.CreateVolume(t.Context(), r)
			wantCode(t, err, codes.AlreadyExists, names.ReasonRequestDiffers)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v does not say %q", err, c.want)
			}
		})
	}
}

func TestABadRequestNamesTheField(t *testing.T) {
	d := newMachine(t).start(t)
	for _, c := range []struct {
		field  string
		change func(*lvmdv1.CreateVolumeRequest)
	}{
		{"name", func(r *lvmdv1.CreateVolumeRequest) { r.Name = "" }},
		{"name", func(r *lvmdv1.CreateVolumeRequest) { r.Name = "a/b" }},
		{"name", func(r *lvmdv1.CreateVolumeRequest) { r.Name = strings.Repeat("a", 129) }},
		{"required_bytes", func(r *lvmdv1.CreateVolumeRequest) { r.RequiredBytes = 0 }},
		{"required_bytes", func(r *lvmdv1.CreateVolumeRequest) { r.RequiredBytes = -1 }},
		{"limit_bytes", func(r *lvmdv1.CreateVolumeRequest) { r.LimitBytes = -1 }},
		{"limit_bytes", func(r *lvmdv1.CreateVolumeRequest) { r.LimitBytes = 1 }},
		{"mode", func(r *lvmdv1.CreateVolumeRequest) { r.Mode = 0 }},
		{"fs_type", func(r *lvmdv1.CreateVolumeRequest) { r.FsType = "zfs" }},
		{"fs_type", func(r *lvmdv1.CreateVolumeRequest) {
			r.FsType, r.Mode = "ext4", lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
		}},
		{"owner.claim_name", func(r *lvmdv1.CreateVolumeRequest) { r.Owner.ClaimName = strings.Repeat("a", 254) }},
	} {
		r := fsRequest("pvc-1", 8, "")
		c.change(r)
		_, err := d.client.CreateVolume(t.Context(), r)
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
		if !strings.Contains(status.Convert(err).Message(), c.field+": ") {
			t.Errorf("%v does not name %s", err, c.field)
		}
	}
	if len(d.list()) != 0 {
		t.Error("something was created")
	}
}

func TestSizesAreRoundedUpAndLimitsKept(t *testing.T) {
	d := newMachine(t).start(t)
	for _, c := range []struct {
		name            string
		fs              string
		required, limit int64
		want            int64 // bytes, or zero for out of range
	}{
		{"one byte takes an extent", "", 1, 0, testExtent},
		{"an exact size stays", "", 2 * testExtent, 2 * testExtent, 2 * testExtent},
		{"rounding up past the limit fails", "", testExtent + 1, testExtent + 2, 0},
		{"a file system gets at least what it needs", "ext4", 1, 0,
			(filesystem.MinimumSize(filesystem.Ext4, false) + testExtent - 1) / testExtent * testExtent},
		{"a limit below what the file system needs fails", "xfs", 1, testExtent, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request("v-"+strings.ReplaceAll(c.name, " ", "-"), 1)
			if c.fs != "" {
				r = fsRequest(r.Name, 1, c.fs)
			}
			r.RequiredBytes, r.LimitBytes = c.required, c.limit
			resp, err := d.client.CreateVolume(t.Context(), r)
			if c.want == 0 {
				wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
				return
			}
			if err != nil || resp.GetVolume().GetSizeBytes() != c.want {
				t.Errorf("%v, error %v; want %d bytes", resp, err, c.want)
			}
		})
	}
}

func TestTheMaximumFitsAndOneExtentMoreDoesNot(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, reserve: 9Mi}\n"
	d := m.start(t)
	most := d.state().GetClasses()[0].GetMaximumVolumeSizeBytes()
	if want := (testTotal - 3) * testExtent; most != want {
		t.Fatalf("maximum %d, want %d: 9 MiB are three extents", most, want)
	}
	for _, size := range []int64{most + 1, most + testExtent, 1 << 62, 1<<63 - 1} {
		r := request("big", 1)
		r.RequiredBytes = size
		_, err := d.client.CreateVolume(t.Context(), r)
		wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	}
	if n := m.fake.Commands(lvmfake.OpCreate); n != 0 {
		t.Errorf("%d commands were run to learn what was known", n)
	}
	r := request("most", 1)
	r.RequiredBytes = most
	d.create(r)
	c := d.state().GetClasses()[0]
	if c.GetAvailableBytes() != 0 || c.GetMaximumVolumeSizeBytes() != 0 {
		t.Errorf("class %v", c)
	}
}

func TestAnUnknownClassIsNotFound(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, volumeGroup: carve}\n- {name: gone, volumeGroup: nowhere, optional: true}\n"
	d := m.start(t)
	for _, class := range []string{"", "other", "gone"} {
		r := request("v", 1)
		r.DeviceClass = class
		_, err := d.client.CreateVolume(t.Context(), r)
		wantCode(t, err, codes.NotFound, names.ReasonClassNotFound)
	}
}

func TestConcurrentCreatesOfOneNameMakeOneVolume(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			resp, err := d.client.CreateVolume(t.Context(), request("pvc-1", 1))
			if err != nil {
				t.Error(err)
			}
			ids[i] = resp.GetVolume().GetId()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("different volumes: %v", ids)
		}
	}
	if n := m.fake.Commands(lvmfake.OpCreate); n != 1 {
		t.Errorf("%d commands", n)
	}
}

func TestConcurrentCreatesFillTheGroupExactly(t *testing.T) {
	d := newMachine(t).start(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[codes.Code]int{}
	for i := range 20 {
		wg.Go(func() {
			_, err := d.client.CreateVolume(t.Context(), request(fmt.Sprintf("pvc-%d", i), testTotal/16))
			mu.Lock()
			got[status.Code(err)]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if got[codes.OK] != 16 || got[codes.ResourceExhausted] != 4 {
		t.Errorf("results %v, want 16 OK and 4 ResourceExhausted", got)
	}
	if d.available() != 0 {
		t.Errorf("%d extents left", d.available())
	}
	d.checkModel()
}

func TestACreateThatNoCallerWaitsForIsUndone(t *testing.T) {
	m := newMachine(t)
	formatting := make(chan struct{})
	m.formatHook = func(ctx context.Context, _ string) error {
		close(formatting)
		<-ctx.Done()
		return ctx.Err()
	}
	d := m.start(t, func(_ *daemon, o *Options) { o.callerGrace = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		result <- err
	}()
	<-formatting
	if v := d.list(); len(v) != 1 || v[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
		t.Errorf("while being created: %v", v)
	}
	cancel()
	wantCode(t, <-result, codes.Canceled, "")
	d.checkClean()
	m.formatHook = nil
	waittest.Until(t, "the name is free again", func() bool {
		_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		return err == nil
	})
}

// abandonedCreate is a daemon that formats a volume, "pvc-1", whose caller has gone. goOn
// ends the formatting.
func abandonedCreate(t *testing.T) (d *daemon, goOn chan struct{}) {
	t.Helper()
	m := newMachine(t)
	formatting, goOn := make(chan struct{}, 2), make(chan struct{})
	m.formatHook = func(ctx context.Context, _ string) error {
		formatting <- struct{}{}
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	d = m.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		result <- err
	}()
	<-formatting
	cancel()
	wantCode(t, <-result, codes.Canceled, "")
	waittest.Until(t, "the caller has gone", func() bool {
		v := d.inspect("pvc-1")
		return v.Callers == 0 && v.Abandoned
	})
	return d, goOn
}

// The next leader asks for what one that died has asked for.
func TestTheNextCallerJoinsACreationWhoseCallerHasGone(t *testing.T) {
	d, goOn := abandonedCreate(t)
	id := d.list()[0].GetId()
	second := make(chan string, 1)
	go func() {
		made, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		if err != nil {
			t.Error(err)
		}
		second <- made.GetVolume().GetId()
	}()
	waittest.Until(t, "the second caller has joined", func() bool {
		v := d.inspect("pvc-1")
		return v.Callers == 1 && !v.Abandoned
	})
	close(goOn)
	if got := <-second; got != id {
		t.Errorf("the second caller got volume %q, want %q, which the first asked for", got, id)
	}
	d.delete(id)
	d.checkClean()
}

func TestADeletionCancelsACreationWhoseCallerHasGone(t *testing.T) {
	d, _ := abandonedCreate(t)
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.Aborted, "OPERATION_PENDING")
	waittest.Until(t, "it is deleted", func() bool {
		_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
		return err == nil && len(d.list()) == 0
	})
	d.checkClean()
}

func TestACallerThatLeavesDoesNotEndTheCreationOfAnother(t *testing.T) {
	m := newMachine(t)
	formatting, goOn := make(chan struct{}), make(chan struct{})
	m.formatHook = func(context.Context, string) error {
		close(formatting)
		<-goOn
		return nil
	}
	d := m.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := d.client.CreateVolume(ctx, fsRequest("pvc-1", 8, ""))
		first <- err
	}()
	<-formatting
	go func() {
		_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
		second <- err
	}()
	waittest.Until(t, "the second caller has joined", func() bool {
		return d.inspect("pvc-1").Callers == 2
	})
	cancel()
	wantCode(t, <-first, codes.Canceled, "")
	close(goOn)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

func TestAFailedFormatLeavesNothing(t *testing.T) {
	m := newMachine(t)
	m.formatHook = func(context.Context, string) error { return errors.New("mkfs: no") }
	d := m.start(t)
	_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
	wantCode(t, err, codes.Internal, names.ReasonCommandFailed)
	d.checkClean()
}

func TestADeletedVolumeIsGoneAtOnceAndItsSpaceOnceItIsClean(t *testing.T) {
	m := newMachine(t)
	goOn := make(chan struct{})
	d := m.start(t)
	v := d.create(request("pvc-1", 3))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0xaa))
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if volume == v.GetId() {
			<-goOn
		}
		return nil
	}
	d.delete(v.GetId())
	if got := d.list(); len(got) != 0 {
		t.Errorf("still listed: %v", got)
	}
	_, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	if got := d.available(); got != testTotal-3 {
		t.Errorf("%d extents available before the wipe", got)
	}
	if again := d.create(request("pvc-1", 1)); again.GetId() == v.GetId() {
		t.Error("the deleted volume came back")
	} else {
		defer d.checkClean()
		defer d.delete(again.GetId())
	}
	d.delete(v.GetId()) // once more is no error
	close(goOn)
}

func TestAMountedVolumeIsNotDeleted(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	m.fake.Unmount(testGroup, v.GetId())
	d.delete(v.GetId())
	d.checkClean()
}

// TestManyDeletesTakeFewCommands has what marks and removes volumes go on only when the others are
// deleted, and then wiped: as it is when commands take long.
func TestManyDeletesTakeFewCommands(t *testing.T) {
	m := newMachine(t)
	var marked, removed sync.Once
	deleted := make(chan struct{})
	d := m.start(t, func(d *daemon, o *Options) {
		pass := o.crashPoint
		o.crashPoint = func(point string) {
			pass(point)
			switch point {
			case "delete: marked":
				marked.Do(func() {
					select {
					case <-deleted:
					case <-t.Context().Done():
					}
				})
			case "delete: removed":
				removed.Do(func() {
					for wiped := false; !wiped && t.Context().Err() == nil; time.Sleep(time.Millisecond) {
						wiped = true
						for _, v := range d.inventory.Inspect() {
							wiped = wiped && v.State == inventory.Wiped
						}
					}
				})
			}
		}
	})
	var ids []string
	for i := range 32 {
		ids = append(ids, d.create(request(fmt.Sprintf("pvc-%d", i), 1)).GetId())
	}
	for _, id := range ids {
		d.delete(id)
	}
	close(deleted)
	d.checkClean()
	if n := m.fake.Commands(lvmfake.OpTag); n > 2 {
		t.Errorf("%d commands marked 32 volumes", n)
	}
	// One of the volumes that were wiped first, one of the others, and one of what checkClean makes.
	if n := m.fake.Commands(lvmfake.OpRemove); n > 3 {
		t.Errorf("%d commands removed 32 volumes", n)
	}
}

func TestAnExpandedVolumeHasItsSizeAndNoMoreThanTheFreeSpace(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 2))
	expand := func(extents, limit int64) (*lvmdv1.ExpandVolumeResponse, error) {
		return d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{
			Id: v.GetId(), RequiredBytes: extents * testExtent, LimitBytes: limit,
		})
	}
	resp, err := expand(5, 0)
	if err != nil || resp.GetVolume().GetSizeBytes() != 5*testExtent {
		t.Errorf("%v, error %v", resp, err)
	}
	commands := m.fake.Commands(lvmfake.OpExtend)
	if resp, err = expand(3, 0); err != nil || resp.GetVolume().GetSizeBytes() != 5*testExtent {
		t.Errorf("no more than it has: %v, error %v", resp, err)
	}
	if m.fake.Commands(lvmfake.OpExtend) != commands {
		t.Error("a command was run for nothing")
	}
	// The group could never hold this, and could hold that if the other volume were not there.
	_, err = expand(testTotal+1, 0)
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	if size := quantity.Bytes(testTotal * testExtent); !strings.HasSuffix(status.Convert(err).Message(), size) {
		t.Errorf("%v, want how much the class has, %s", err, size)
	}
	other := d.create(request("pvc-other", 1))
	_, err = expand(testTotal, 0)
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	d.delete(other.GetId())
	waittest.Until(t, "the other volume's space is free", func() bool { return d.available() == testTotal-5 })
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{
		Id: v.GetId(), RequiredBytes: 6*testExtent + 1, LimitBytes: 6*testExtent + 2})
	wantCode(t, err, codes.OutOfRange, names.ReasonSizeOutOfRange)
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: spec.NewVolumeID(), RequiredBytes: 1})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	if resp, err = expand(testTotal, 0); err != nil || d.available() != 0 {
		t.Errorf("to the last extent: %v, error %v", resp, err)
	}
	// A retry of the create still finds it.
	if again := d.create(request("pvc-1", 2)); again.GetId() != v.GetId() {
		t.Errorf("%v", again)
	}
	d.checkModel()
}

func TestAGroupThatMayHaveSoManyVolumesOffersNoMore(t *testing.T) {
	m := newMachine(t)
	m.fake.SetMostVolumes(testGroup, 2)
	d := m.start(t)
	first := d.create(fsRequest("pvc-1", 4, "ext4"))
	raw := d.create(request("pvc-2", 1))
	if got := d.available(); got != 0 {
		t.Errorf("%d extents are offered in a group that may have no more volumes", got)
	}
	_, err := d.client.CreateVolume(t.Context(), request("pvc-3", 1))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	if err == nil || !strings.Contains(err.Error(), "vgchange --logicalvolume 0 "+testGroup) {
		t.Errorf("error %v, want one that says what lifts the limit", err)
	}
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: first.GetId(), RequiredBytes: 5 * testExtent}))(t)
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: raw.GetId(), RequiredBytes: 2 * testExtent})
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	d.delete(first.GetId())
	waittest.Until(t, "there is space for another volume", func() bool { return d.available() == testTotal-1 })
	d.create(request("pvc-3", 1))
	d.checkModel()
}

func TestAGroupThatAppearsLaterAndIsNoPersistentMemoryOffersNothing(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: memory, volumeGroup: memory, medium: pmem, optional: true}\n- {name: local, default: true, volumeGroup: carve}\n"
	d := m.start(t)
	m.fake.AddGroup("memory", testExtent, testTotal)
	memory := func() *lvmdv1.DeviceClass {
		for _, c := range d.state().GetClasses() {
			if c.GetName() == "memory" {
				return c
			}
		}
		return nil // not offered
	}
	waittest.Until(t, "the class says what is wrong", func() bool {
		c := memory()
		return len(c.GetConditions()) == 1 && c.GetConditions()[0].GetType() == "NotPersistentMemory"
	}, func() any { return memory() })
	if got := memory().GetAvailableBytes(); got != 0 {
		t.Errorf("%d bytes are offered", got)
	}
	r := fsRequest("pvc-1", 1, "ext4")
	r.DeviceClass = "memory"
	_, err := d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	m.fake.SetDAX("memory", true)
	m.fake.SetDataOffset("memory", 2<<20)
	m.fake.SetMostVolumes("memory", 0) // any change has lvmd look at the group
	waittest.Until(t, "it is offered once it is persistent memory", func() bool {
		c := memory()
		return len(c.GetConditions()) == 0 && c.GetAvailableBytes() == testTotal*testExtent
	}, func() any { return memory() })
}

// TestAMissingGroupIsAConditionUntilItAppears starts on a node on which nothing was prepared:
// lvmd is ready, says what is missing, and makes volumes once the group is there. An optional
// class is not offered until then.
func TestAMissingGroupIsAConditionUntilItAppears(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: nowhere}\n- {name: later, volumeGroup: nowhere, optional: true}\n"
	events := make(chan struct{}, 1)
	d := m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
	must.Succeed(t, d.Ready(t.Context()))
	classes := d.state().GetClasses()
	if len(classes) != 1 || classes[0].GetName() != "local" || classes[0].GetAvailableBytes() != 0 ||
		len(classes[0].GetConditions()) != 1 || classes[0].GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("classes: want local alone, without space and with VolumeGroupMissing, got %v", classes)
	}
	_, err := d.client.CreateVolume(t.Context(), request("early", 1))
	wantCode(t, err, codes.Unavailable, names.ReasonDeviceMissing)
	m.fake.AddGroup("nowhere", testExtent, 4)
	events <- struct{}{}
	waittest.Until(t, "both classes are offered", func() bool {
		now := d.state().GetClasses()
		return len(now) == 2 && now[0].GetAvailableBytes() == 4*testExtent && len(now[0].GetConditions()) == 0
	})
	d.create(request("in-time", 1))
}

func TestAGroupThatWasThereBeforeAndIsNotFoundAtTheStartStopsNoOther(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("other", testExtent, 4)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: other, volumeGroup: other}\n"
	d := m.start(t)
	inOther := request("pvc-other", 2)
	inOther.DeviceClass = "other"
	v := d.create(inOther)
	d.stop()
	m.fake.Deactivate()
	m.fake.PlugGroup("other", false)

	events := make(chan struct{}, 1)
	d = m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
	other := func() *lvmdv1.DeviceClass { return d.state().GetClasses()[1] }
	if c := other(); c.GetAvailableBytes() != 0 || len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("the class is %v, want no free space and VolumeGroupMissing", c)
	}
	if got := d.list(); len(got) != 1 || got[0].GetId() != v.GetId() || len(got[0].GetConditions()) != 1 || got[0].GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("volumes %v, want %s with VolumeGroupMissing", got, v.GetId())
	}
	d.delete(d.create(request("pvc-local", 1)).GetId())

	m.fake.PlugGroup("other", true)
	events <- struct{}{}
	waittest.Until(t, "the class and its volume are well, and the volume has a device", func() bool {
		got := d.list()
		return len(other().GetConditions()) == 0 && len(got) == 1 && len(got[0].GetConditions()) == 0 && got[0].GetDevicePath() != ""
	})
	d.delete(v.GetId())
	d.checkClean()
}

// lateDisk is an LVM that, as the real one, reads nothing of a group that no scan has found. Once it
// is armed, it calls a function after the next scan that misses the group.
type lateDisk struct {
	lvm.Groups
	group        string
	missed       func()
	found, armed atomic.Bool
}

func (l *lateDisk) Scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	found, err := l.Groups.Scan(ctx, names)
	if slices.ContainsFunc(found, func(g lvm.Group) bool { return g.Name == l.group }) {
		l.found.Store(true)
	} else if slices.Contains(names, l.group) && l.armed.CompareAndSwap(true, false) {
		l.missed()
	}
	return found, err
}

func (l *lateDisk) Metadata(group string) (ondisk.Metadata, error) {
	if group == l.group && !l.found.Load() {
		return ondisk.Metadata{}, lvm.ErrNotFound
	}
	return l.Groups.Metadata(group)
}

// TestADiskThatComesDuringAScanIsSeen has a group's disk come when a scan has missed it, and its
// event before the scan is taken over.
func TestADiskThatComesDuringAScanIsSeen(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("other", testExtent, 4)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: other, volumeGroup: other}\n"
	m.fake.PlugGroup("other", false)
	late := &lateDisk{group: "other"}
	d := m.start(t, func(_ *daemon, o *Options) { late.Groups, o.LVM = o.LVM, late })
	late.missed = func() {
		m.fake.PlugGroup("other", true)
		d.inventory.Recheck()
	}
	late.armed.Store(true)
	d.inventory.Recheck()
	waittest.Until(t, "the class is offered", func() bool { return d.state().GetClasses()[1].GetAvailableBytes() == 4*testExtent })
}

func TestAFullMetadataAreaLeavesNoSpace(t *testing.T) {
	m := newMachine(t)
	m.fake.SetMetadataLimit(testGroup, 24<<10)
	d := m.start(t)
	most := d.state().GetClasses()[0].GetGroups()[0].GetMostVolumes()
	var ids []string
	for {
		c := d.state().GetClasses()[0]
		resp, err := d.client.CreateVolume(t.Context(), request(fmt.Sprintf("pvc-%d", len(ids)), 1))
		if free := c.GetAvailableBytes() > 0; free && err != nil {
			t.Fatalf("after %d volumes: space for %d, but %v", len(ids), c.GetAvailableBytes(), err)
		}
		if err != nil {
			wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
			if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "MetadataFull" || c.GetMaximumVolumeSizeBytes() != 0 {
				t.Errorf("class %v", c)
			}
			break
		}
		ids = append(ids, resp.GetVolume().GetId())
	}
	if len(ids) < 10 || len(ids) == int(testTotal) {
		t.Fatalf("%d volumes", len(ids))
	}
	if full := d.state().GetClasses()[0].GetGroups()[0].GetMostVolumes(); full != most || full < int64(len(ids)) || full > 6*int64(len(ids)) {
		t.Errorf("a group with %d volumes that is full says that it could hold %d at most, an empty one %d", len(ids), full, most)
	}
	d.checkModel()
	for _, id := range ids {
		d.delete(id)
	}
	waittest.Until(t, "all is free", func() bool { return d.available() == testTotal })
}

func TestAPMEMClassNeedsDevicesThatCanBeMapped(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, medium: pmem}\n"
	unfit := func(class, want string) {
		t.Helper()
		d := m.start(t)
		defer d.stop()
		c := d.classNamed(class)
		if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != conditions.NotPersistentMemory ||
			!strings.Contains(c.GetConditions()[0].GetMessage(), `.medium: "pmem": `) || !strings.Contains(c.GetConditions()[0].GetMessage(), want) {
			t.Errorf("class %v, want %s", c, want)
		}
	}
	unfit("local", "queue/dax")
	m.fake.SetDAX(testGroup, true)
	unfit("local", "--dataalignment 2m")
	m.fake.SetDataOffset(testGroup, 2<<20)
	d := m.start(t)
	if v := d.create(fsRequest("pvc-1", 8, "")); !v.GetDax() || !m.formatted[v.GetDevicePath()].DAX {
		t.Errorf("volume %v", v)
	}
	m.fake.AddGroup("odd", 3<<20, 8)
	m.fake.SetDAX("odd", true)
	m.config += "- {name: other, volumeGroup: odd, medium: pmem}\n"
	d.stop()
	unfit("other", "extents of 3Mi")
}
