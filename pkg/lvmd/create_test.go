//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
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

func TestAFailedFormatLeavesNothing(t *testing.T) {
	m := newMachine(t)
	m.formatHook = func(context.Context, string) error { return errors.New("mkfs: no") }
	d := m.start(t)
	_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 8, ""))
	wantCode(t, err, codes.Internal, names.ReasonCommandFailed)
	d.checkClean()
}
