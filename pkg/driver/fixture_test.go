package driver_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/luks/luksfake"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const gib = 1 << 30

// kubelet is a machine with a running plugin, and acts as its kubelet.
type kubelet struct {
	*drivertest.Plugin
	t       testing.TB
	machine *drivertest.Machine
	// size of volumes, in bytes.
	size int64
	// secrets go with each stage.
	secrets map[string]string
}

type fixture struct {
	kubelet
	lvmd        *lvmdfake.Server
	mounts      *mountfake.Table
	fileSystems *drivertest.FileSystems
	luks        *luksfake.Table
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	m := drivertest.NewFakeMachine(t)
	return &fixture{
		kubelet: kubelet{Plugin: m.Start(), t: t, machine: m.Machine, size: gib},
		lvmd:    m.LVMD, mounts: m.Mounts, fileSystems: m.FileSystems, luks: m.LUKS,
	}
}

// volume creates a volume, raw block if fsType is empty. It waits while deleted
// volumes are being wiped.
func (f *kubelet) volume(name, fsType string) *lvmdv1.Volume {
	f.t.Helper()
	r := &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: f.size, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: fsType}
	if fsType == "" {
		r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	var made *lvmdv1.CreateVolumeResponse
	waittest.Succeeds(f.t, "there is space for volume "+name, func() (err error) {
		made, err = f.machine.LVMD.CreateVolume(context.Background(), r)
		if err != nil && status.Code(err) != codes.ResourceExhausted {
			f.t.Fatal(err)
		}
		return err
	})
	return made.GetVolume()
}

func (f *fixture) alter(v *lvmdv1.Volume, change func(*lvmdv1.Volume)) *lvmdv1.Volume {
	change(v)
	f.lvmd.Put(v)
	return v
}

func (f *kubelet) staging(v *lvmdv1.Volume) string {
	return f.machine.MakeDir("plugins", "kubernetes.io", "csi", v.GetId(), "globalmount")
}

func (f *kubelet) target(v *lvmdv1.Volume, pod string) string {
	return f.machine.Path("pods", pod, "volumes", "kubernetes.io~csi", v.GetId(), "mount")
}

func (f *kubelet) stage(v *lvmdv1.Volume, c *csi.VolumeCapability) error {
	_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), VolumeCapability: c, Secrets: f.secrets,
	})
	return err
}

func (f *kubelet) unstage(v *lvmdv1.Volume) error {
	_, err := f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: f.staging(v)})
	return err
}

func (f *kubelet) publish(v *lvmdv1.Volume, pod string, c *csi.VolumeCapability, readOnly bool) error {
	_, err := f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: f.target(v, pod), VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (f *kubelet) unpublish(v *lvmdv1.Volume, pod string) error {
	_, err := f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: f.target(v, pod)})
	return err
}

// ctx returns a context that expires only if the call hangs.
func (f *kubelet) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *kubelet) layers() (all, stacked []string) {
	f.t.Helper()
	points := must.Get(f.machine.Mounts.Below(f.machine.KubeletDir))(f.t)
	for _, p := range points {
		if slices.Contains(all, p.Path) {
			stacked = append(stacked, p.Path)
		}
		all = append(all, p.Path)
	}
	return all, stacked
}

// wantLayers checks for n layers, none above another.
func (f *kubelet) wantLayers(n int) {
	f.t.Helper()
	all, stacked := f.layers()
	if len(all) != n || len(stacked) > 0 {
		f.t.Errorf("%d layers, want %d: %q; stacked are %q", len(all), n, all, stacked)
	}
}

func (f *kubelet) wantAt(path string, want mount.State) {
	f.t.Helper()
	got, err := f.machine.Mounts.At(path)
	if err != nil || got != want {
		f.t.Errorf("%s: got %+v, %v, want %+v", filepath.Base(path), got, err, want)
	}
}

func wantError(t testing.TB, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), words) {
		t.Errorf("got %v, want %v with %q", err, code, words)
	}
}

func deviceOf(v *lvmdv1.Volume) mount.Device {
	return mount.Device{Major: v.GetDeviceMajor(), Minor: v.GetDeviceMinor()}
}

const (
	writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	reader = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	single = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multi  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
)

func filesystemAccess(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
	}
}

func blockAccess(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}
