//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// foreignName is named as TopoLVM does, by its object's UID.
const foreignName = "0f2bdf1e-7c79-4c0a-a7a5-3d1f1f9a6f0e"

func startWithForeign(t *testing.T, m *machine, tags ...string) *daemon {
	t.Helper()
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: foreignName, Extents: 4, Tags: tags}))
	must.Succeed(t, m.fake.Fill(testGroup, foreignName, 0x5a))
	return m.start(t, holding(filesystem.XFS))
}

func holding(fs filesystem.Type) func(*daemon, *Options) {
	return func(_ *daemon, o *Options) {
		o.Probe = func(string) (filesystem.Info, error) {
			return filesystem.Info{Type: fs, UUID: "5e3f0a80-0000-4000-8000-000000000001"}, nil
		}
	}
}

func adoption(name string) *lvmdv1.AdoptVolumeRequest {
	return &lvmdv1.AdoptVolumeRequest{
		LvName: foreignName, Name: name, DeviceClass: "local", Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimNamespace: "ns", ClaimName: "data", ClaimUid: "uid"},
	}
}

// tagsOf returns nil if the logical volume does not exist.
func (m *machine) tagsOf(t *testing.T, name string) []string {
	t.Helper()
	found := must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)
	lv := found[0].Volume(name)
	if lv == nil {
		return nil
	}
	return append([]string{}, lv.Tags...)
}

func (m *machine) checkKept(t *testing.T, name string) {
	t.Helper()
	if blocks, pattern, err := m.fake.Traces(testGroup, name); err != nil || blocks != int(4*testExtent/4096) || pattern != 0x5a {
		t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
	}
}

func TestAForeignVolumeIsAdoptedInPlaceAndOverARestart(t *testing.T) {
	m := newMachine(t)
	d := startWithForeign(t, m, "theirs")
	free := d.available()
	plan := adoption("pvc-1")
	plan.DryRun = true
	planned := must.Get(d.client.AdoptVolume(t.Context(), plan))(t).GetVolume()
	if planned.GetId() != "" || planned.GetFsType() != "xfs" || planned.GetSizeBytes() != 4*testExtent || planned.GetAdoptedFrom() != foreignName {
		t.Errorf("a dry run: %v", planned)
	}
	if tags := m.tagsOf(t, foreignName); len(tags) != 1 || len(d.list()) != 0 {
		t.Errorf("after a dry run there are the tags %q and the volumes %v", tags, d.list())
	}
	v := must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t).GetVolume()
	if !spec.VolumeID.MatchString(v.GetId()) || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || v.GetSizeBytes() != 4*testExtent ||
		v.GetFsType() != "xfs" || v.GetFsUuid() != "5e3f0a80-0000-4000-8000-000000000001" || v.GetDevicePath() == "" ||
		v.GetOwner().GetClaimName() != "data" || v.GetAdoptedFrom() != foreignName {
		t.Errorf("adopted: %v", v)
	}
	if m.tagsOf(t, foreignName) != nil || d.available() != free {
		t.Errorf("the former name is there still, or %d extents are available and no more %d", d.available(), free)
	}
	m.checkKept(t, v.GetId())
	if again := must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t).GetVolume(); again.GetId() != v.GetId() {
		t.Errorf("a repeated call: %v", again)
	}
	d.checkModel()
	d.kill()
	m.loseJournal(t)
	d = m.start(t, holding(filesystem.XFS))
	got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}))(t).GetVolume()
	if got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || got.GetAdoptedFrom() != foreignName {
		t.Errorf("without a journal: %v", got)
	}
	d.delete(v.GetId())
	d.checkClean()
}

func TestAnAdoptionIsRevertedUntilItIsConfirmed(t *testing.T) {
	m := newMachine(t)
	d := startWithForeign(t, m, "theirs")
	v := must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t).GetVolume()
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	_, err := d.client.RevertAdoption(t.Context(), &lvmdv1.RevertAdoptionRequest{Id: v.GetId()})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	m.fake.Unmount(testGroup, v.GetId())
	reverted := must.Get(d.client.RevertAdoption(t.Context(), &lvmdv1.RevertAdoptionRequest{Id: v.GetId()}))(t)
	if reverted.GetVgName() != testGroup || reverted.GetLvName() != foreignName {
		t.Errorf("reverted: %v", reverted)
	}
	if tags := m.tagsOf(t, foreignName); len(tags) != 1 || tags[0] != "theirs" || len(d.list()) != 0 {
		t.Errorf("tags %q, volumes %v", tags, d.list())
	}
	m.checkKept(t, foreignName)
	waittest.Until(t, "the journal is empty", func() bool { return len(must.Get(d.journal.Volumes())(t)) == 0 })

	v = must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t).GetVolume()
	for range 2 {
		confirmed := must.Get(d.client.ConfirmAdoption(t.Context(), &lvmdv1.ConfirmAdoptionRequest{Id: v.GetId()}))(t).GetVolume()
		if confirmed.GetAdoptedFrom() != "" {
			t.Errorf("confirmed: %v", confirmed)
		}
	}
	_, err = d.client.RevertAdoption(t.Context(), &lvmdv1.RevertAdoptionRequest{Id: v.GetId()})
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	_, err = d.client.RevertAdoption(t.Context(), &lvmdv1.RevertAdoptionRequest{Id: "cvaaaaaaaaaaaaaaaaaaaaaaaaaa"})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	m.checkKept(t, v.GetId())
	d.stop()
	d = m.start(t, holding(filesystem.XFS))
	if got := d.list(); len(got) != 1 || got[0].GetAdoptedFrom() != "" || got[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
		t.Errorf("after a restart: %v", got)
	}
}

// A PersistentVolume of the caller would name a volume that gets its former name back a moment
// later.
func TestNoAdoptionIsGivenAVolumeThatIsBeingReverted(t *testing.T) {
	m := newMachine(t)
	d := startWithForeign(t, m)
	v := must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t).GetVolume()
	claimed := must.Get(d.claimAdopted(v.GetId(), inventory.Deleting))(t)
	_, err := d.client.AdoptVolume(t.Context(), adoption("pvc-1"))
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	claimed.Release()
	must.Get(d.client.AdoptVolume(t.Context(), adoption("pvc-1")))(t)
}

func TestWhatCannotBeAdoptedIsLeftAlone(t *testing.T) {
	m := newDisks(t, 20, 24, 20)
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{
		Group: testGroup, Volume: "striped", Extents: 4, Layout: layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}}))
	d := startWithForeign(t, m)
	mine := d.create(request("pvc-9", 1)).GetId()
	before := m.fake.Commands(lvmfake.OpRetag)
	for what, c := range map[string]struct {
		change func(*lvmdv1.AdoptVolumeRequest)
		code   codes.Code
		reason string
	}{
		"no logical volume is named":   {func(r *lvmdv1.AdoptVolumeRequest) { r.LvName = "" }, codes.InvalidArgument, names.ReasonInvalidField},
		"there is none of the name":    {func(r *lvmdv1.AdoptVolumeRequest) { r.LvName = "gone" }, codes.NotFound, names.ReasonVolumeNotFound},
		"it is Carve's already":        {func(r *lvmdv1.AdoptVolumeRequest) { r.LvName = mine }, codes.InvalidArgument, names.ReasonInvalidField},
		"there is no such class":       {func(r *lvmdv1.AdoptVolumeRequest) { r.DeviceClass = "tape" }, codes.NotFound, names.ReasonClassNotFound},
		"the group is another's":       {func(r *lvmdv1.AdoptVolumeRequest) { r.VgName = "other" }, codes.Unavailable, names.ReasonDeviceMissing},
		"it is linear, the class not":  {func(r *lvmdv1.AdoptVolumeRequest) { r.DeviceClass = "striped" }, codes.InvalidArgument, names.ReasonInvalidField},
		"it is striped, the class not": {func(r *lvmdv1.AdoptVolumeRequest) { r.LvName = "striped" }, codes.InvalidArgument, names.ReasonInvalidField},
		"the name is malformed":        {func(r *lvmdv1.AdoptVolumeRequest) { r.Name = "a b" }, codes.InvalidArgument, names.ReasonInvalidField},
		"the name is another volume's": {func(r *lvmdv1.AdoptVolumeRequest) { r.Name = "pvc-9" }, codes.AlreadyExists, names.ReasonRequestDiffers},
		"no mode is given":             {func(r *lvmdv1.AdoptVolumeRequest) { r.Mode = 0 }, codes.InvalidArgument, names.ReasonInvalidField},
	} {
		t.Run(what, func(t *testing.T) {
			r := adoption("pvc-1")
			r.DeviceClass = "linear"
			c.change(r)
			_, err := d.client.AdoptVolume(t.Context(), r)
			wantCode(t, err, c.code, c.reason)
		})
	}
	must.Succeed(t, m.fake.Mount(testGroup, foreignName))
	inUse := adoption("pvc-1")
	inUse.DeviceClass = "linear"
	_, err := d.client.AdoptVolume(t.Context(), inUse)
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	m.fake.Unmount(testGroup, foreignName)
	if n := m.fake.Commands(lvmfake.OpRetag) - before; n != 0 {
		t.Errorf("%d commands changed tags", n)
	}
	m.checkKept(t, foreignName)
}

func TestARawVolumeIsAdoptedWhateverItHolds(t *testing.T) {
	m := newMachine(t)
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: foreignName, Extents: 4}))
	must.Succeed(t, m.fake.Fill(testGroup, foreignName, 0x5a))
	m.fake.Renumber(testGroup, foreignName, false) // After a reboot without the driver.
	d := m.start(t)
	_, err := d.client.AdoptVolume(t.Context(), adoption("pvc-1"))
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	r := adoption("pvc-1")
	r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	v := must.Get(d.client.AdoptVolume(t.Context(), r))(t).GetVolume()
	if v.GetMode() != lvmdv1.VolumeMode_VOLUME_MODE_BLOCK || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || v.GetDevicePath() == "" {
		t.Errorf("adopted: %v", v)
	}
	m.checkKept(t, v.GetId())
}

func TestAThinVolumeIsAdoptedIntoTheClassOfItsPoolOnly(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	m.config += "\n- name: linear\n  volumeGroup: carve\n"
	d := m.start(t, holding(filesystem.Ext4))
	pool := m.fakePool(t)
	must.Succeed(t, m.fake.CreateThin(t.Context(), lvm.ThinOptions{Group: testGroup, Pool: pool, Volume: foreignName, Bytes: 4 * testExtent}))
	r := adoption("pvc-1")
	r.DeviceClass = "linear"
	_, err := d.client.AdoptVolume(t.Context(), r)
	wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
	r.DeviceClass = ""
	v := must.Get(d.client.AdoptVolume(t.Context(), r))(t).GetVolume()
	if v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || v.GetSizeBytes() != 4*testExtent {
		t.Errorf("adopted: %v", v)
	}
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 6 * testExtent}))(t)
	d.checkModel()
}

func (m *machine) fakePool(t *testing.T) string {
	t.Helper()
	for _, lv := range must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)[0].Volumes {
		if lv.Attr.IsThinPool() {
			return lv.Name
		}
	}
	t.Fatal("there is no thin pool")
	return ""
}

// Crash points cover an adoption, its reversal, a second adoption and the confirmation. The
// volume always exists under either name, and the calls can be repeated.
func TestKilledInAnAdoptionNothingIsLost(t *testing.T) {
	places := 0
	for at := 1; ; at++ {
		m := newMachine(t)
		must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: foreignName, Extents: 4, Tags: []string{"theirs"}}))
		must.Succeed(t, m.fake.Fill(testGroup, foreignName, 0x5a))
		d := m.start(t, holding(filesystem.XFS))
		d.gate.mu.Lock()
		d.gate.count, d.gate.crashAt, d.gate.done = 0, at, make(chan struct{})
		d.gate.mu.Unlock()
		adoptRevertConfirm(t, d)
		crashed := d.gate.crashed.Load()
		point := d.gate.point
		d.kill()
		d = m.start(t, holding(filesystem.XFS))
		r := adoption("pvc-1")
		if m.tagsOf(t, foreignName) == nil {
			if got := d.list(); len(got) != 1 || got[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
				t.Fatalf("killed at %q: the former name is gone, and there are the volumes %v", point, got)
			}
		} else {
			must.Get(d.client.AdoptVolume(t.Context(), r))(t)
		}
		v := d.list()[0]
		m.checkKept(t, v.GetId())
		must.Get(d.client.ConfirmAdoption(t.Context(), &lvmdv1.ConfirmAdoptionRequest{Id: v.GetId()}))(t)
		if tags := fmt.Sprint(m.tagsOf(t, v.GetId())); spec.AdoptedFrom(m.tagsOf(t, v.GetId())) != "" {
			t.Errorf("killed at %q: tags %s", point, tags)
		}
		d.checkModel()
		d.delete(v.GetId())
		d.checkClean()
		d.stop()
		if !crashed {
			break
		}
		places++
		if t.Failed() {
			t.Fatalf("killed at place %d, %q", at, point)
		}
	}
	if places < 10 {
		t.Errorf("only %d places to be killed at", places)
	}
}

func adoptRevertConfirm(t *testing.T, d *daemon) {
	t.Helper()
	ctx, cancel := contextUntil(t, d.gate.done)
	defer cancel()
	adopted, err := d.client.AdoptVolume(ctx, adoption("pvc-1"))
	if err != nil {
		return
	}
	if _, err = d.client.RevertAdoption(ctx, &lvmdv1.RevertAdoptionRequest{Id: adopted.GetVolume().GetId()}); err != nil {
		return
	}
	if adopted, err = d.client.AdoptVolume(ctx, adoption("pvc-1")); err != nil {
		return
	}
	_, _ = d.client.ConfirmAdoption(ctx, &lvmdv1.ConfirmAdoptionRequest{Id: adopted.GetVolume().GetId()})
}

func contextUntil(t *testing.T, crashed <-chan struct{}) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	go func() {
		select {
		case <-crashed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
