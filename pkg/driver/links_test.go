package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

func swap(t *testing.T, path, precious string) {
	t.Helper()
	dir := filepath.Dir(path)
	for _, err := range []error{os.Rename(dir, dir+"-away"), os.Symlink(precious, dir)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// swapping swaps a path's directory at the last moment: after the call's
// checks, right before or after the mount table changes.
type swapping struct {
	mount.Interface
	before, after func()
}

func (s swapping) Bind(source, path string, readOnly bool) error {
	s.before()
	defer s.after()
	return s.Interface.Bind(source, path, readOnly)
}

func (s swapping) Unmount(path string) error {
	s.before()
	defer s.after()
	return s.Interface.Unmount(path)
}

func TestALinkThatAppearsAfterTheCheckIsNotFollowed(t *testing.T) {
	t.Run("by stage", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		precious := f.machine.MakeDir("precious", "globalmount")
		f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
		path := f.staging(v)
		f.fileSystems.Checking = func(context.Context, string) error {
			swap(t, path, filepath.Dir(precious))
			return nil
		}
		err := second(f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
			VolumeId: v.GetId(), StagingTargetPath: path, VolumeCapability: access(v)}))
		if err == nil {
			t.Error("it was")
		}
		f.wantLayers(0)
	})
	none := func() {}
	for name, late := range map[string]bool{"before": false, "after": true} {
		t.Run("by publish, "+name+" the bind", func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", "ext4")
			must.Succeed(f.t, f.stage(v, access(v)))
			f.Stop(t)
			precious, target := f.machine.MakeDir("precious", "mount"), f.target(v, "pod")
			s := swapping{f.machine.Mounts, func() { swap(t, target, filepath.Dir(precious)) }, none}
			if late {
				s.before, s.after = s.after, s.before
			}
			f.machine.Mounts = s
			f.Plugin = f.machine.Start()
			err := second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
				VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: target, VolumeCapability: access(v)}))
			if !late && err == nil {
				t.Error("it was")
			}
			if _, err := os.Lstat(precious); err != nil {
				t.Errorf("what the link leads to was removed: %v", err)
			}
		})
		t.Run("by unpublish, "+name+" the unmount", func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", "ext4")
			must.Succeed(f.t, f.stage(v, access(v)))
			must.Succeed(f.t, f.publish(v, "pod", access(v), false))
			f.Stop(t)
			precious, target := f.machine.MakeDir("precious", "mount"), f.target(v, "pod")
			s := swapping{f.machine.Mounts, func() { swap(t, target, filepath.Dir(precious)) }, none}
			if late {
				s.before, s.after = s.after, s.before
			}
			f.machine.Mounts = s
			f.Plugin = f.machine.Start()
			if err := second(f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: target})); err == nil {
				t.Error("it was")
			}
			if _, err := os.Lstat(precious); err != nil {
				t.Errorf("what the link leads to was removed: %v", err)
			}
		})
	}
}

func TestTheVolumeContextLeadsNowhere(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	hostile := map[string]string{
		"carve.csi.local/device-class": "../../etc", "path": "/etc", "device": "/dev/sda", "mountOptions": "errors=panic",
		"csi.storage.k8s.io/pod.name": "../../..",
	}
	must.Succeed(f.t, second(f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), VolumeCapability: access(v), VolumeContext: hostile, PublishContext: hostile})))
	must.Succeed(f.t, second(f.NodePublishVolume(f.ctx(), &csi.NodePublishVolumeRequest{
		VolumeId: v.GetId(), StagingTargetPath: f.staging(v), TargetPath: f.target(v, "pod"), VolumeCapability: access(v),
		VolumeContext: hostile, PublishContext: hostile})))
	f.wantLayers(2)
	points := must.Get(f.mounts.Below(f.machine.KubeletDir))(f.t)
	for _, p := range points {
		if p.Device != deviceOf(v) || len(p.FSOptions) != 1 {
			t.Errorf("got %+v", p)
		}
	}
}
