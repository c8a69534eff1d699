package driver_test

import (
	"context"
	"path/filepath"
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
)

const gib = 1 << 30

// fixture is a machine of fakes with a plugin running on it.
type fixture struct {
	*drivertest.Plugin
	t           testing.TB
	machine     *drivertest.Machine
	mounts      *mountfake.Table
	fileSystems *drivertest.FileSystems
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	m := drivertest.NewMachine(t)
	mounts, fileSystems := m.Fake()
	return &fixture{Plugin: m.Start(), t: t, machine: m, mounts: mounts, fileSystems: fileSystems}
}

// volume creates a volume; an empty fsType makes it a raw block one.
func (f *fixture) volume(name, fsType string) *lvmdv1.Volume {
	f.t.Helper()
	r := &lvmdv1.CreateVolumeRequest{Name: name, RequiredBytes: gib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: fsType}
	if fsType == "" {
		r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	got, err := f.machine.LVMD.CreateVolume(context.Background(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return got.GetVolume()
}

// alter changes what lvmd says of a volume.
func (f *fixture) alter(v *lvmdv1.Volume, change func(*lvmdv1.Volume)) *lvmdv1.Volume {
	change(v)
	f.machine.LVMD.Put(v)
	return v
}

// staging returns the volume's staging path, made as the kubelet makes it.
func (f *fixture) staging(v *lvmdv1.Volume) string {
	return f.machine.MakeDir("plugins", "kubernetes.io", "csi", v.GetId(), "globalmount")
}

// target returns a target path of a Pod for the volume; its parent exists.
func (f *fixture) target(v *lvmdv1.Volume, pod string) string {
	return f.machine.Path("pods", pod, "volumes", "kubernetes.io~csi", v.GetId(), "mount")
}

func (f *fixture) stage(v *lvmdv1.Volume, c *csi.VolumeCapability) error {
	_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), VolumeCapability: c,
	})
	return err
}

func (f *fixture) unstage(v *lvmdv1.Volume) error {
	_, err := f.NodeUnstageVolume(f.ctx(), &csi.NodeUnstageVolumeRequest{VolumeId: v.GetId(), StagingTargetPath: f.staging(v)})
	return err
}

func (f *fixture) publish(v *lvmdv1.Volume, pod string, c *csi.VolumeCapability, readOnly bool) error {
	_, err := f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: f.target(v, pod), VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (f *fixture) unpublish(v *lvmdv1.Volume, pod string) error {
	_, err := f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: f.target(v, pod)})
	return err
}

// must fails the test on an error.
func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// ctx is a call's context, with a bound that only a hang reaches.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

// wantLayers checks the mount table: so many layers, none above another.
func (f *fixture) wantLayers(n int) {
	f.t.Helper()
	if got := f.mounts.Layers(); got != n {
		points, _ := f.mounts.Below(f.machine.KubeletDir)
		f.t.Errorf("%d layers, want %d: %+v", got, n, points)
	}
	if stacked := f.mounts.Stacked(); len(stacked) > 0 {
		f.t.Errorf("layers are stacked at %q", stacked)
	}
}

// wantAt checks what a path shows.
func (f *fixture) wantAt(path string, want mount.State) {
	f.t.Helper()
	got, err := f.machine.Mounts.At(path)
	if err != nil || got != want {
		f.t.Errorf("%s: got %+v, %v, want %+v", filepath.Base(path), got, err, want)
	}
}

// wantError checks an error's code and that its message has the words.
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
