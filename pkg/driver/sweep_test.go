package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

type places struct{ staged, published, device, subpath string }

func (f *kubelet) places(v *lvmdv1.Volume) places {
	f.t.Helper()
	file := f.machine.Path("plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "pvc-"+v.GetId(), "pod-uid")
	must.Succeed(f.t, os.WriteFile(file, nil, 0o600))
	return places{
		staged:    f.machine.MakeDir("plugins", "kubernetes.io", "csi", "carve.csi.local", "hash-"+v.GetId(), "globalmount"),
		published: f.machine.MakeDir("pods", "pod-uid", "volumes", "kubernetes.io~csi", "pvc-"+v.GetId(), "mount"),
		device:    file,
		subpath:   f.machine.MakeDir("pods", "pod-uid", "volume-subpaths", "pvc-"+v.GetId(), "container", "0"),
	}
}

func (f *kubelet) note(path string) {
	f.t.Helper()
	must.Succeed(f.t, os.WriteFile(path, []byte(`{"driverName":"carve.csi.local","volumeHandle":"of-the-kubelet"}`), 0o600))
}

func (f *kubelet) leak(v *lvmdv1.Volume, p places) {
	f.t.Helper()
	must.Succeed(f.t, f.machine.Mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
	must.Succeed(f.t, f.machine.Mounts.Bind(p.staged, p.published, false))
}

func (f *kubelet) beside(path string) string {
	return filepath.Join(filepath.Dir(path), "vol_data.json")
}

func TestSweep(t *testing.T) {
	tests := []struct {
		name  string
		raw   bool
		leave func(*fixture, *lvmdv1.Volume, places)
		// kept returns the paths that should still have a layer.
		kept func(places) []string
		log  string
	}{
		{name: "what no kubelet knows of is unmounted, of a volume that is gone too",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				must.Succeed(f.t, f.mounts.Bind(p.staged, p.published, false))
				must.Get(f.machine.LVMD.DeleteVolume(f.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}))(f.t)
			}},
		{name: "an encrypted volume goes",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				plain := "/dev/mapper/carve.crypt." + v.GetId()
				f.mounts.AddNode(plain, mount.Device{Major: 253, Minor: 99}, gib)
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: plain}, p.staged, "ext4", nil))
			}},
		{name: "what is encrypted by another program stays",
			leave: func(f *fixture, _ *lvmdv1.Volume, p places) {
				f.mounts.AddNode("/dev/mapper/luks-data", mount.Device{Major: 253, Minor: 99}, gib)
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: "/dev/mapper/luks-data"}, p.staged, "ext4", nil))
			},
			kept: func(p places) []string { return []string{p.staged} }},
		{name: "all layers of a stack go",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				must.Succeed(f.t, f.mounts.Bind(p.staged, p.staged, false))
			}},
		{name: "a dead file system goes",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				f.mounts.Kill(deviceOf(v))
			}},
		{name: "a raw block volume's node goes", raw: true,
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Bind(v.GetDevicePath(), p.device, false))
			}},
		{name: "a Pod's volume of which the kubelet has a record stays, and so does what it is staged from",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				must.Succeed(f.t, f.mounts.Bind(p.staged, p.published, false))
				f.note(f.beside(p.published))
			},
			kept: func(p places) []string { return []string{p.published, p.staged} }, log: "it is in use at"},
		{name: "what is staged stays when the kubelet has a record of it",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				f.note(f.beside(p.staged))
			},
			kept: func(p places) []string { return []string{p.staged} }},
		{name: "a raw block volume of which the kubelet has a record stays", raw: true,
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Bind(v.GetDevicePath(), p.device, false))
				f.note(filepath.Join(f.machine.MakeDir("plugins", "kubernetes.io", "csi", "volumeDevices", "pvc-"+v.GetId(), "data"), "vol_data.json"))
			},
			kept: func(p places) []string { return []string{p.device} }},
		{name: "a volume that a container has a subpath of stays",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.published, "ext4", nil))
				must.Succeed(f.t, f.mounts.Bind(p.published, p.subpath, false))
			},
			kept: func(p places) []string { return []string{p.published, p.subpath} }, log: "it is in use at"},
		{name: "what is busy stays",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				f.mounts.SetBusy(p.staged, true)
			},
			kept: func(p places) []string { return []string{p.staged} }, log: "busy"},
		{name: "a device that is not ours stays, wherever it is",
			leave: func(f *fixture, _ *lvmdv1.Volume, p places) {
				f.mounts.AddNode("/dev/other/cv00000000000000000000000009", mount.Device{Major: 253, Minor: 99}, gib)
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: "/dev/other/cv00000000000000000000000009"}, p.staged, "ext4", nil))
			},
			kept: func(p places) []string { return []string{p.staged} }},
		{name: "a logical volume that we did not make stays",
			leave: func(f *fixture, _ *lvmdv1.Volume, p places) {
				f.mounts.AddNode("/dev/carve/data", mount.Device{Major: 253, Minor: 99}, gib)
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: "/dev/carve/data"}, p.published, "ext4", nil))
			},
			kept: func(p places) []string { return []string{p.published} }},
		{name: "a volume that an administrator mounted stays",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.subpath, "ext4", nil))
			},
			kept: func(p places) []string { return []string{p.subpath} }},
		{name: "nothing goes when the kubelet has no record of any driver",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				f.leak(v, p)
				must.Succeed(f.t, os.Remove(f.machine.Path(drivertest.OtherRecord)))
			},
			kept: func(p places) []string { return []string{p.published, p.staged} }, log: "no readable vol_data.json of any driver"},
		{name: "nothing goes when the only record is none that is known",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				f.leak(v, p)
				must.Succeed(f.t, os.WriteFile(f.machine.Path(drivertest.OtherRecord), []byte(`{"version":2}`), 0o600))
			},
			kept: func(p places) []string { return []string{p.published, p.staged} }, log: "no readable vol_data.json of any driver"},
		{name: "nothing goes when the kubelet has no Pod",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.staged, "ext4", nil))
				must.Succeed(f.t, os.RemoveAll(filepath.Join(f.machine.KubeletDir, "pods")))
				f.machine.MakeDir("pods")
			},
			kept: func(p places) []string { return []string{p.staged} }, log: "is empty"},
		{name: "nothing goes beside a file that is not known",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				f.leak(v, p)
				must.Succeed(f.t, os.WriteFile(f.beside(p.published)+".v2", nil, 0o600))
			},
			kept: func(p places) []string { return []string{p.published, p.staged} }, log: "is not known"},
		{name: "what a container has mounted stays, and is named",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				f.leak(v, p)
				f.mounts.Hold(deviceOf(v), mount.Holder{PID: 7, Process: "db", Pod: "pod-uid", Path: "/data"})
			},
			kept: func(p places) []string { return []string{p.published, p.staged} },
			log:  "it is in use: process 7 (db) of Pod pod-uid has it mounted at /data"},
		{name: "nothing goes when containers are not seen",
			leave: func(f *fixture, v *lvmdv1.Volume, p places) {
				f.leak(v, p)
				f.mounts.HideHost()
			},
			kept: func(p places) []string { return []string{p.published, p.staged} }, log: "it is not known whether a container uses it"},
		{name: "another driver's staging path stays",
			leave: func(f *fixture, v *lvmdv1.Volume, _ places) {
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, f.machine.MakeDir("plugins", "kubernetes.io", "csi", "other", "hash", "globalmount"), "ext4", nil))
			},
			kept: func(p places) []string {
				return []string{filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(p.staged))), "other", "hash", "globalmount")}
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			fsType := "ext4"
			if tt.raw {
				fsType = ""
			}
			v := f.volume("a", fsType)
			p := f.places(v)
			tt.leave(f, v, p)
			before, _ := f.layers()
			f.machine.StopLVMD()
			f.Sweep(context.Background())
			f.Sweep(context.Background())

			left := map[string]bool{}
			all, _ := f.layers()
			for _, path := range all {
				left[path] = true
			}
			var kept []string
			if tt.kept != nil {
				kept = tt.kept(p)
			}
			if len(left) != len(kept) {
				t.Errorf("left: %q, want %q", all, kept)
			}
			for _, path := range kept {
				if !left[path] {
					t.Errorf("%s is gone", path)
				}
			}
			for _, path := range before {
				if published := path == p.published || path == p.device; published && !left[path] {
					f.wantGone(path)
				}
			}
			if log := f.machine.Log.String(); !strings.Contains(log, tt.log) {
				t.Errorf("no %q in the log: %s", tt.log, log)
			}
			if len(kept) == 0 && testutil.CollectAndCount(f.Metrics.Registry, "carve_node_leaked_mounts_total") == 0 {
				t.Error("nothing was counted")
			}
		})
	}
}

func TestSweepLeavesAVolumeAloneThatACallIsFor(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	p := f.places(v)
	f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
	checking, proceed, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f.fileSystems.Checking = func(context.Context, string) error {
		close(checking)
		<-proceed
		return nil
	}
	go func() { done <- f.stage(v, filesystemAccess(writer)) }()
	<-checking
	must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, p.published, "ext4", nil))
	f.Sweep(context.Background())
	f.wantAt(p.published, mount.State{Mounted: true, Device: deviceOf(v)})
	close(proceed)
	must.Succeed(f.t, <-done)
}

func TestWhatIsSweptIsNoVolumeAnyMoreThatCannotBeUnmounted(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	p := f.places(v)
	f.leak(v, p)
	f.mounts.SetBusy(p.published, true)
	_, err := f.NodeUnpublishVolume(f.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetId(), TargetPath: p.published})
	wantError(t, err, codes.FailedPrecondition, "busy")
	if found := f.CheckHealth(t.Context(), driver.Conditions{}); found[v.GetId()][driver.ReasonUnmountFails] == "" {
		t.Errorf("while it is mounted: %q", found)
	}
	f.mounts.SetBusy(p.published, false)
	f.Sweep(t.Context())
	f.wantLayers(0)
	if found := f.CheckHealth(t.Context(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("after it was swept: %q", found)
	}
}
