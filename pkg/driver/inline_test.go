package driver_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/must"
)

type inlineVolume struct {
	id, pod    string
	attributes map[string]string
	access     *csi.VolumeCapability
	readOnly   bool
}

func (f *kubelet) inline(pod, fsType string) inlineVolume {
	access := filesystemAccess(writer)
	access.GetMount().FsType = fsType
	return inlineVolume{
		id: fmt.Sprintf("csi-%x", sha256.Sum256([]byte(pod+"scratch"))), pod: pod, access: access,
		attributes: map[string]string{
			"carve.csi.local/size":                   fmt.Sprint(f.size),
			"csi.storage.k8s.io/ephemeral":           "true",
			"csi.storage.k8s.io/pod.name":            "web",
			"csi.storage.k8s.io/pod.namespace":       "shop",
			"csi.storage.k8s.io/pod.uid":             pod,
			"csi.storage.k8s.io/serviceAccount.name": "default",
		},
	}
}

func (i inlineVolume) with(key, value string) inlineVolume {
	i.attributes = maps.Clone(i.attributes)
	i.attributes[key] = value
	return i
}

func (f *kubelet) inlineTarget(i inlineVolume) string {
	return f.machine.Path("pods", i.pod, "volumes", "kubernetes.io~csi", "scratch", "mount")
}

// publishInline acts like the kubelet: it writes its record, then calls.
func (f *kubelet) publishInline(i inlineVolume) error {
	f.note(f.beside(f.inlineTarget(i)))
	return second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: i.id, TargetPath: f.inlineTarget(i), VolumeCapability: i.access, VolumeContext: i.attributes, Readonly: i.readOnly,
	}))
}

func (f *kubelet) unpublishInline(i inlineVolume) error {
	return second(f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: i.id, TargetPath: f.inlineTarget(i)}))
}

func (f *kubelet) podGoes(pod string) {
	f.t.Helper()
	must.Succeed(f.t, os.RemoveAll(filepath.Join(f.machine.KubeletDir, "pods", pod)))
}

// listed returns lvmd's volumes and fails if any is not inline.
func (f *kubelet) listed() []*lvmdv1.Volume {
	f.t.Helper()
	conn := must.Get(driver.DialLVMD(f.machine.LVMDSocket()))(f.t)
	defer conn.Close()
	answer := must.Get(lvmdv1.NewLVMDClient(conn).ListVolumes(f.ctx(), &lvmdv1.ListVolumesRequest{}))(f.t)
	return answer.GetVolumes()
}

func (f *kubelet) inlineDevice(i inlineVolume) string {
	f.t.Helper()
	for _, v := range f.listed() {
		if v.GetName() == i.id {
			return v.GetDevicePath()
		}
	}
	f.t.Fatalf("lvmd has no volume %s", i.id)
	return ""
}

func (f *kubelet) wantInline(want ...inlineVolume) {
	f.t.Helper()
	names := map[string]bool{}
	for _, v := range f.listed() {
		names[v.GetName()] = true
	}
	for _, i := range want {
		if !names[i.id] {
			f.t.Errorf("there is no volume for Pod %s", i.pod)
		}
	}
	if len(names) != len(want) {
		f.t.Errorf("%d volumes, want %d: %v", len(names), len(want), names)
	}
}

func newInline(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	hooks := f.lvmd.Hooks()
	hooks.BeforeDelete = f.refuseMounted
	f.lvmd.SetHooks(hooks)
	f.machine.InlineVolumes = true
	f.restart()
	return f
}

// refuseMounted makes lvmd keep every mounted volume.
func (f *fixture) refuseMounted(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) error {
	got, err := f.lvmd.GetVolume(ctx, &lvmdv1.GetVolumeRequest{Id: r.GetId()})
	if err == nil && f.mounts.Shows(deviceOf(got.GetVolume())) {
		return apierror.VolumeInUse(r.GetId(), errors.New("it is mounted"))
	}
	return nil
}

func (f *kubelet) restart() {
	f.t.Helper()
	f.Stop(f.t)
	f.Plugin = f.machine.Start()
}

func TestAnInlineVolumeLastsAsLongAsItsPod(t *testing.T) {
	f := newInline(t)
	a, b := f.inline("pod-a", ""), f.inline("pod-b", "xfs")
	b.readOnly = true
	for range 2 {
		must.Succeed(f.t, f.publishInline(a))
		must.Succeed(f.t, f.publishInline(b))
	}
	f.wantInline(a, b)
	f.wantLayers(2)
	for _, v := range f.listed() {
		want, fsType, readOnly := a, "ext4", false
		if v.GetName() == b.id {
			want, fsType, readOnly = b, "xfs", true
		}
		f.wantAt(f.inlineTarget(want), mount.State{Mounted: true, Device: deviceOf(v), ReadOnly: readOnly})
		if o := v.GetOwner(); v.GetFsType() != fsType || v.GetSizeBytes() != f.size ||
			o.GetPodUid() != want.pod || o.GetPodName() != "web" || o.GetPodNamespace() != "shop" || o.GetClaimUid() != "" {
			t.Errorf("volume %v", v)
		}
	}
	stats, err := f.NodeGetVolumeStats(f.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: a.id, VolumePath: f.inlineTarget(a)})
	if err != nil || stats.GetUsage()[0].GetTotal() != f.size {
		t.Errorf("stats %v, %v", stats, err)
	}
	health, err := f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: a.id})
	if err != nil || len(health.GetVolumeHealth().GetHealthStatuses()) != 0 {
		t.Errorf("health %v, %v", health, err)
	}
	for range 2 {
		must.Succeed(f.t, f.unpublishInline(a))
		f.wantGone(f.inlineTarget(a))
		f.wantInline(b)
	}
	// A plugin that allows no new volumes removes existing ones too.
	f.machine.InlineVolumes = false
	f.restart()
	must.Succeed(f.t, f.unpublishInline(b))
	f.wantInline()
	f.wantLayers(0)
	_, err = f.NodeGetVolumeHealth(f.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: a.id})
	wantError(t, err, codes.NotFound, a.id)
}

func TestAnInlineVolumeIsMadeAsItsPodWants(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "").with("carve.csi.local/encryption", "ephemeral").with("carve.csi.local/profile", "scratch").
		with("carve.csi.local/device-class", "local").with("carve.csi.local/size", "1.5Gi").
		with("carve.csi.local/mkfs-bytes-per-inode", "4Ki").with("carve.csi.local/mkfs-inode-size", "512")
	must.Succeed(f.t, f.publishInline(i))
	v := f.listed()[0]
	if got, want := v.GetFsSettings(), map[string]string{"bytes-per-inode": "4096", "inode-size": "512"}; !maps.Equal(got, want) {
		t.Errorf("settings %v, want %v", got, want)
	}
	if v.GetEncryption() != "ephemeral" || v.GetProfile() != "scratch" || v.GetDeviceClass() != "local" || v.GetSizeBytes() != 3*gib/2 {
		t.Errorf("volume %v", v)
	}
	must.Succeed(f.t, f.unpublishInline(i))
	f.wantInline()
}

func TestInlineVolumesThatAreRefused(t *testing.T) {
	f := newInline(t)
	good := f.inline("pod", "")
	tests := []struct {
		name   string
		volume func() inlineVolume
		code   codes.Code
		words  string
	}{
		{"no size", func() inlineVolume { return good.with("carve.csi.local/size", "") }, codes.InvalidArgument,
			"volumeAttributes[carve.csi.local/size]: a value is required"},
		{"a size that is none", func() inlineVolume { return good.with("carve.csi.local/size", "10 GB") }, codes.InvalidArgument,
			`volumeAttributes[carve.csi.local/size]: "10 GB" is not allowed`},
		{"a size of nothing", func() inlineVolume { return good.with("carve.csi.local/size", "0") }, codes.InvalidArgument, `"0" is not allowed`},
		{"a negative size", func() inlineVolume { return good.with("carve.csi.local/size", "-1Gi") }, codes.InvalidArgument, `"-1Gi" is not allowed`},
		{"a size beyond all bounds", func() inlineVolume { return good.with("carve.csi.local/size", "8Ei") }, codes.InvalidArgument, `"8Ei" is not allowed`},
		{"a key that is kept", func() inlineVolume { return good.with("carve.csi.local/encryption", "luks") }, codes.InvalidArgument,
			`"luks" is not allowed for a volume that ends with its Pod: "ephemeral" is`},
		{"an unknown key", func() inlineVolume { return good.with("size", "1Gi") }, codes.InvalidArgument,
			`volumeAttributes: key "size" is not allowed: carve.csi.local/size, carve.csi.local/device-class, carve.csi.local/encryption, carve.csi.local/profile and carve.csi.local/mkfs-… are`},
		{"a setting that its file system has not", func() inlineVolume { return good.with("carve.csi.local/mkfs-node-size", "4096") }, codes.InvalidArgument,
			`volumeAttributes[carve.csi.local/mkfs-node-size]: setting "node-size" is not allowed for ext4: allowed are block-size,`},
		{"a setting's value beyond its bounds", func() inlineVolume { return good.with("carve.csi.local/mkfs-inode-size", "a b") }, codes.InvalidArgument,
			`volumeAttributes[carve.csi.local/mkfs-inode-size]: setting "inode-size=a b" is not allowed`},
		{"a label", func() inlineVolume { return good.with("carve.csi.local/mkfs-label", "root") }, codes.InvalidArgument,
			"volumeAttributes[carve.csi.local/mkfs-label]: a label is not allowed"},
		{"the file system among the attributes", func() inlineVolume { return good.with("csi.storage.k8s.io/fstype", "xfs") }, codes.InvalidArgument,
			`key "csi.storage.k8s.io/fstype" is not allowed`},
		{"a device class that the node does not have", func() inlineVolume { return good.with("carve.csi.local/device-class", "fast") }, codes.InvalidArgument,
			`volumeAttributes[carve.csi.local/device-class]: lvmd: no device class "fast"; this node offers local`},
		{"an unknown file system", func() inlineVolume { return f.inline("pod", "zfs") }, codes.InvalidArgument, `"zfs" is not supported`},
		{"raw block", func() inlineVolume { i := good; i.access = blockAccess(writer); return i }, codes.InvalidArgument, "inline volumes have a file system"},
		{"an id that no kubelet makes", func() inlineVolume { i := good; i.id = "scratch"; return i }, codes.InvalidArgument, `volume_id: "scratch"`},
		{"another Pod's path", func() inlineVolume { return good.with("csi.storage.k8s.io/pod.uid", "other") }, codes.InvalidArgument, "belongs to Pod pod"},
		{"a kubelet that says nothing of the Pod", func() inlineVolume { i := good; i.attributes = nil; return i }, codes.FailedPrecondition, "podInfoOnMount"},
		{"more than is free", func() inlineVolume { return good.with("carve.csi.local/size", "1Ti") }, codes.ResourceExhausted, "10737418240 available"},
	}
	f.lvmd.Resize("local", 10*gib)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, f.publishInline(tt.volume()), tt.code, tt.words)
			f.wantInline()
			f.wantLayers(0)
			f.wantGone(f.inlineTarget(good))
		})
	}
	t.Run("a path that is no Pod's", func(t *testing.T) {
		wantError(t, second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
			VolumeId: good.id, TargetPath: f.machine.Path("elsewhere", "mount"), VolumeCapability: good.access, VolumeContext: good.attributes,
		})), codes.InvalidArgument, "pods/UID/volumes/kubernetes.io~csi/NAME/mount")
	})
	t.Run("any where they are switched off", func(t *testing.T) {
		f.machine.InlineVolumes = false
		f.restart()
		wantError(t, f.publishInline(good), codes.FailedPrecondition, "use a generic ephemeral volume")
		f.wantInline()
	})
}

func TestInlineVolumesLargerThanTheNodeAllowsAreNotMade(t *testing.T) {
	f := newInline(t)
	before := f.inline("before", "ext4")
	must.Succeed(t, f.publishInline(before))
	f.machine.InlineMaxBytes = gib / 2
	f.restart()

	for name, size := range map[string]string{"twice as large": "1Gi", "one byte larger": fmt.Sprint(gib/2 + 1)} {
		i := f.inline(name, "ext4").with("carve.csi.local/size", size)
		wantError(t, f.publishInline(i), codes.InvalidArgument, "volumeAttributes[carve.csi.local/size]: ")
		wantError(t, f.publishInline(i), codes.InvalidArgument, "this node makes inline volumes of at most 512Mi (--inline-max-size")
	}
	f.wantInline(before)
	metric := `
		# HELP carve_node_inline_volumes_total Inline volumes, by event: made, refused (by lvmd), too-large (for --inline-max-size), removed (with their Pods), reclaimed (after their Pods were gone).
		# TYPE carve_node_inline_volumes_total counter
		carve_node_inline_volumes_total{event="too-large"} 4
	`
	must.Succeed(t, testutil.GatherAndCompare(f.Metrics.Registry, strings.NewReader(metric), "carve_node_inline_volumes_total"))
	exact := f.inline("exact", "ext4").with("carve.csi.local/size", "512Mi")
	must.Succeed(t, f.publishInline(exact))
	// An existing volume passes whatever its size: after a failed call, and
	// after a reboot.
	must.Succeed(t, f.publishInline(before))
	must.Succeed(t, f.mounts.Unmount(f.inlineTarget(before)))
	must.Succeed(t, f.publishInline(before))
	f.wantInline(before, exact)
}

func TestAnInlineVolumeThatCannotBeMountedIsTakenBack(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	f.mounts.FailMounts(syscall.ENOMEM)
	wantError(t, f.publishInline(i), codes.Internal, "cannot allocate memory")
	f.wantInline()
	f.wantGone(f.inlineTarget(i))

	// An existing one has its Pod's data in it.
	f.mounts.FailMounts(nil)
	must.Succeed(f.t, f.publishInline(i))
	must.Succeed(f.t, f.mounts.Unmount(f.inlineTarget(i))) // a reboot
	f.mounts.FailMounts(syscall.ENOMEM)
	wantError(t, f.publishInline(i), codes.Internal, "cannot allocate memory")
	f.wantInline(i)
	f.mounts.FailMounts(nil)
	must.Succeed(f.t, f.publishInline(i))
	wantError(t, f.publishInline(i.with("carve.csi.local/size", "3Gi")), codes.AlreadyExists, "asked for 3221225472")
	must.Succeed(f.t, f.unpublishInline(i))
	f.wantInline()
}

func TestAnInlineVolumeGoesOnlyWhenNothingUsesIt(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	must.Succeed(f.t, f.publishInline(i))

	f.lvmd.SetDown(true)
	wantError(t, f.unpublishInline(i), codes.Unavailable, "a disk is gone")
	f.lvmd.SetDown(false)
	f.wantInline(i)
	elsewhere := f.machine.MakeDir("elsewhere")
	must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: f.listed()[0].GetDevicePath()}, elsewhere, "ext4", nil))
	wantError(t, f.unpublishInline(i), codes.FailedPrecondition, "is open or mounted")
	must.Succeed(f.t, f.mounts.Unmount(elsewhere))
	must.Succeed(f.t, f.unpublishInline(i))
	f.wantInline()
	f.wantGone(f.inlineTarget(i))
}

func TestAVolumeWithAnInlineVolumesNameIsNotTakenForOne(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	f.volume(i.id, "ext4")
	wantError(t, f.publishInline(i), codes.AlreadyExists, `belongs to Pod ""`)
	wantError(t, f.unpublishInline(i), codes.FailedPrecondition, "belongs to no Pod")
	f.wantInline(i)
}

type crashingLVMD struct {
	lvmdv1.LVMDServer
	*reaper
}

func (m crashingLVMD) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (answer *lvmdv1.CreateVolumeResponse, err error) {
	err = m.step("create", func() error {
		answer, err = m.LVMDServer.CreateVolume(ctx, r)
		return err
	})
	return answer, err
}

func (m crashingLVMD) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (answer *lvmdv1.DeleteVolumeResponse, err error) {
	err = m.step("delete", func() error {
		answer, err = m.LVMDServer.DeleteVolume(ctx, r)
		return err
	})
	return answer, err
}

func TestKilledAtAnyStepNoInlineVolumeIsLeftOrMadeTwice(t *testing.T) {
	published := func(f *fixture, i inlineVolume) { must.Succeed(f.t, f.publishInline(i)) }
	calls := []struct {
		name   string
		before func(*fixture, inlineVolume)
		call   func(*fixture, inlineVolume) error
		steps  int
	}{
		{"publish", func(*fixture, inlineVolume) {}, func(f *fixture, i inlineVolume) error { return f.publishInline(i) }, 2},
		{"unpublish", published, func(f *fixture, i inlineVolume) error { return f.unpublishInline(i) }, 2},
	}
	for _, c := range calls {
		for at := 1; at <= c.steps; at++ {
			for _, after := range []bool{false, true} {
				for _, forgotten := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, step %d, after it %t, then forgotten %t", c.name, at, after, forgotten), func(t *testing.T) {
						f, r := newKillableInline(t)
						i := f.inline("pod", "")
						f.machine.MakeDir("pods", "plugin")
						c.before(f, i)
						r.arm(at, after)
						_ = c.call(f, i)
						if steps, died := r.stop(); steps != at || !died {
							t.Fatalf("%d steps, died %t: the enumeration is of %d", steps, died, c.steps)
						}
						f.restart()
						if forgotten {
							f.forget(i)
						} else {
							must.Succeed(f.t, c.call(f, i))
							must.Succeed(f.t, f.publishInline(i))
							f.wantInline(i)
							f.wantLayers(1)
							must.Succeed(f.t, f.unpublishInline(i))
						}
						f.wantInline()
						f.wantLayers(0)
						if n := testutil.CollectAndCount(f.Metrics.Registry, "carve_node_inline_volumes_total"); n == 0 && !forgotten {
							t.Error("nothing was counted")
						}
					})
				}
			}
		}
	}
}

func newKillableInline(t *testing.T) (*fixture, *reaper) {
	t.Helper()
	f, r := newInline(t), &reaper{}
	f.machine.StopLVMD()
	f.machine.LVMD = crashingLVMD{f.machine.LVMD, r}
	f.machine.StartLVMD()
	f.machine.Mounts = crashingMounts{f.machine.Mounts, r}
	f.restart()
	return f, r
}

func TestTheSameInlineVolumeTwiceAtOnce(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	f.note(f.beside(f.inlineTarget(i)))
	for range 20 {
		f.atOnce(func() error {
			return second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
				VolumeId: i.id, TargetPath: f.inlineTarget(i), VolumeCapability: i.access, VolumeContext: i.attributes,
			}))
		})
		f.wantInline(i)
		f.wantLayers(1)
		f.atOnce(func() error { return f.unpublishInline(i) })
		f.wantInline()
		f.wantLayers(0)
	}
	if log := f.machine.Log.String(); strings.Count(log, "made an inline volume") != 20 {
		t.Errorf("made %d times", strings.Count(log, "made an inline volume"))
	}
}
