package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestStageMountsOnce(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", fsType)
			for range 3 {
				must.Succeed(f.t, f.stage(v, filesystemAccess(writer, "noatime")))
			}
			f.wantLayers(1)
			f.wantAt(f.staging(v), mount.State{Mounted: true, Device: deviceOf(v)})
			points, _ := f.mounts.Below(f.machine.KubeletDir)
			want := map[string]string{"ext4": "rw,noatime", "xfs": "rw,noatime,nouuid", "btrfs": "rw,noatime"}[fsType]
			if p := points[0]; p.FSType != fsType || strings.Join(p.FSOptions, ",") != want {
				t.Errorf("got %+v", p)
			}
			if n := f.fileSystems.Checks(v.GetDevicePath()); n != 0 {
				t.Errorf("a clean file system was checked %d times", n)
			}
			for range 3 {
				must.Succeed(f.t, f.unstage(v))
			}
			f.wantLayers(0)
			if _, err := os.Stat(f.staging(v)); err != nil {
				t.Errorf("the staging directory is the kubelet's: %v", err)
			}
		})
	}
}

type thawing struct {
	mount.Interface
	times atomic.Int64
}

func (m *thawing) Thaw(path string) (bool, error) {
	m.times.Add(1)
	return m.Interface.Thaw(path)
}

// A thaw reads all mounts of the node, perhaps thousands.
func TestStageThawsWhatTheKernelHasAlready(t *testing.T) {
	machine := drivertest.NewFakeMachine(t)
	mounts := &thawing{Interface: machine.Mounts}
	machine.Machine.Mounts = mounts
	f := &fixture{kubelet: kubelet{Plugin: machine.Start(), t: t, machine: machine.Machine, size: gib}, lvmd: machine.LVMD, mounts: machine.Mounts}
	v := f.volume("a", "ext4")
	must.Succeed(t, f.stage(v, filesystemAccess(writer)))
	if n := mounts.times.Load(); n != 0 {
		t.Errorf("a file system that was mounted first was thawed %d times", n)
	}
	must.Succeed(t, f.unstage(v))
	f.mounts.Freeze(deviceOf(v))
	before := mounts.times.Load()
	must.Succeed(t, f.stage(v, filesystemAccess(writer)))
	if n := mounts.times.Load() - before; n != 1 {
		t.Errorf("a file system that was left frozen was thawed %d times, want once", n)
	}
}

func TestStageReadOnly(t *testing.T) {
	for name, c := range map[string]*csi.VolumeCapability{
		"by access mode":  filesystemAccess(reader),
		"by mount option": filesystemAccess(writer, "noatime,ro"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", "ext4")
			must.Succeed(f.t, f.stage(v, c))
			must.Succeed(f.t, f.stage(v, c))
			f.wantLayers(1)
			f.wantAt(f.staging(v), mount.State{Mounted: true, Device: deviceOf(v), ReadOnly: true})
			must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
			f.wantLayers(1)
			f.wantAt(f.staging(v), mount.State{Mounted: true, Device: deviceOf(v)})
		})
	}
	t.Run("what is staged for writing is not staged read-only by the way", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		wantError(t, f.stage(v, filesystemAccess(reader)), codes.AlreadyExists, "staged for writing")
	})
}

func TestStageOfBlockMountsNothing(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "")
	must.Succeed(f.t, f.stage(v, blockAccess(writer)))
	f.wantLayers(0)
	must.Succeed(f.t, f.unstage(v))
}

func TestStageRefusesWhatDoesNotFit(t *testing.T) {
	tests := []struct {
		name    string
		fsType  string
		access  *csi.VolumeCapability
		prepare func(*fixture, *lvmdv1.Volume)
		code    codes.Code
		words   string
	}{
		{name: "an unknown volume", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				must.Get(f.machine.LVMD.DeleteVolume(context.Background(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}))(f.t)
			},
			code: codes.NotFound, words: "no volume"},
		{name: "a volume that is being created", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				f.alter(v, func(v *lvmdv1.Volume) { v.State = lvmdv1.VolumeState_VOLUME_STATE_CREATING })
			},
			code: codes.Unavailable, words: "still being created"},
		{name: "block access to a file system", fsType: "ext4", access: blockAccess(writer),
			code: codes.InvalidArgument, words: "created with a file system"},
		{name: "mount access to a raw block volume", fsType: "", access: filesystemAccess(writer),
			code: codes.InvalidArgument, words: "created as a raw block device"},
		{name: "another file system than the volume's", fsType: "ext4",
			access: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}},
			},
			code: codes.InvalidArgument, words: `"xfs" is not allowed`},
		{name: "a mount option of another file system", fsType: "xfs", access: filesystemAccess(writer, "commit=5"),
			code: codes.InvalidArgument, words: `mount_flags: mount option "commit=5" is not allowed for xfs`},
		{name: "a volume without a file system is never formatted", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) { f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{}) },
			code:    codes.FailedPrecondition, words: "no known file system"},
		{name: "a volume with a foreign file system is never formatted", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.XFS})
			},
			code: codes.FailedPrecondition, words: "carries xfs: it was created with ext4"},
		{name: "a file system that is not the volume's own is neither mounted nor formatted", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, UUID: "01234567-89ab-cdef-0123-456789abcdef"})
			},
			code: codes.FailedPrecondition, words: "not its own, UUID 01234567-89ab-cdef-0123-456789abcdef instead of"},
		{name: "a missing device node", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) { f.mounts.RemoveNode(v.GetDevicePath()) },
			code:    codes.Unavailable, words: "no device node"},
		{name: "a device node that stands for another volume", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				f.mounts.AddNode(v.GetDevicePath(), mount.Device{Major: 253, Minor: 99}, gib)
			},
			code: codes.Unavailable, words: "stands for device 253:99"},
		{name: "a staging path that something else took", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				f.mounts.AddNode("/dev/other", mount.Device{Major: 253, Minor: 99}, gib)
				must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: "/dev/other"}, f.staging(v), "ext4", nil))
			},
			code: codes.FailedPrecondition, words: "device 253:99 is mounted there"},
		{name: "a staging path that is a symbolic link", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, v *lvmdv1.Volume) {
				path := f.staging(v)
				must.Succeed(f.t, os.Remove(path))
				must.Succeed(f.t, os.Symlink("/etc", path))
			},
			code: codes.InvalidArgument, words: "is a symbolic link: a directory is required"},
		{name: "a kernel that refuses the mount", fsType: "ext4", access: filesystemAccess(writer),
			prepare: func(f *fixture, _ *lvmdv1.Volume) { f.mounts.FailMounts(syscall.EUCLEAN) },
			code:    codes.Internal, words: "structure needs cleaning"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			v := f.volume("a", tt.fsType)
			if tt.prepare != nil {
				tt.prepare(f, v)
			}
			before, _ := f.layers()
			wantError(t, f.stage(v, tt.access), tt.code, tt.words)
			f.wantLayers(len(before))
		})
	}
}

func TestStageFindsTheDeviceBehindAStaleNode(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.mounts.AddNode(v.GetDevicePath(), mount.Device{Major: 253, Minor: 99}, gib)
	kernels := fmt.Sprintf("/dev/dm-%d", v.GetDeviceMinor())
	f.mounts.AddNode(kernels, deviceOf(v), gib)
	f.fileSystems.Set(kernels, filesystem.Info{Type: filesystem.Ext4})
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	f.wantAt(f.staging(v), mount.State{Mounted: true, Device: deviceOf(v)})
}

// The kernel has given the volume's device number to another volume, as when
// both devices are removed and recreated, while lvmd still reports the old one.
func TestADeviceThatIsAnotherVolumesIsNotUsed(t *testing.T) {
	for _, kind := range []string{"raw block", "file system", "ephemeral", "luks"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t)
			fsType := map[bool]string{true: "ext4"}[kind == "file system"]
			v := f.volume("a", fsType)
			switch kind {
			case "ephemeral":
				v = f.alter(v, func(v *lvmdv1.Volume) {
					v.Encryption, v.DevicePath = "ephemeral", "/dev/mapper/carve.crypt."+v.GetId()
				})
			case "luks":
				v = f.locked("b", "")
			}
			at := v.GetDevicePath()
			kernels := fmt.Sprintf("/dev/dm-%d", v.GetDeviceMinor())
			f.mounts.AddNode(kernels, deviceOf(v), gib)
			f.fileSystems.Set(kernels, filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid()})
			for _, other := range []string{"/dev/carve/cv00000000000000000000000009", "/dev/mapper/foreign"} {
				f.mounts.AddNode(other, deviceOf(v), gib)
				f.mounts.AddNode(at, mount.Device{Major: 253, Minor: 99}, gib)
				wantError(t, f.stage(v, access(v)), codes.Unavailable, fmt.Sprintf("is not volume %s any more", v.GetId()))
				if kind == "raw block" || kind == "ephemeral" {
					wantError(t, f.publish(v, "pod", access(v), false), codes.Unavailable, "any more")
				}
				f.wantLayers(0)
			}
			if calls := f.luks.Calls(); len(calls) > 0 {
				t.Errorf("calls %q, want none", calls)
			}
			// lvmd has noticed.
			v = f.alter(v, func(v *lvmdv1.Volume) { v.DeviceMinor = 99 })
			f.fileSystems.Set(at, filesystem.Info{Type: filesystem.Ext4, UUID: v.GetFsUuid()})
			must.Succeed(f.t, f.stage(v, access(v)))
			must.Succeed(f.t, f.publish(v, "pod", access(v), false))
		})
	}
	t.Run("the plain device of an encrypted volume is not its encrypted one", func(t *testing.T) {
		f := newFixture(t)
		v := f.alter(f.volume("a", ""), func(v *lvmdv1.Volume) { v.Encryption = "ephemeral" })
		wantError(t, f.stage(v, access(v)), codes.Unavailable, "any more")
	})
}

func TestStageChecksAFileSystemAfterACrash(t *testing.T) {
	dirty := filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true}
	t.Run("once, before it is mounted", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirty)
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		f.wantLayers(1)
		if n := f.fileSystems.Checks(v.GetDevicePath()); n != 1 {
			t.Errorf("checked %d times", n)
		}
	})
	t.Run("and mounts nothing when it is beyond automatic repair", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirty)
		f.fileSystems.Checking = func(context.Context, string) error { return filesystem.ErrCorrupt }
		wantError(t, f.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "manual repair")
		f.wantLayers(0)
	})
	t.Run("but not while a previous run's mount is there", func(t *testing.T) {
		f := newFixture(t)
		v := f.volume("a", "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirty)
		must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, f.machine.MakeDir("leaked"), "ext4", nil))
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		if n := f.fileSystems.Checks(v.GetDevicePath()); n != 0 {
			t.Errorf("a mounted file system was checked")
		}
	})
}

func TestALongCheckDelaysNoOtherVolume(t *testing.T) {
	f := newFixture(t)
	slow, quick := f.volume("slow", "ext4"), f.volume("quick", "ext4")
	f.fileSystems.Set(slow.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
	checking, proceed := make(chan struct{}), make(chan struct{})
	f.fileSystems.Checking = func(ctx context.Context, _ string) error {
		close(checking)
		select {
		case <-proceed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// The kubelet stops waiting; the check continues.
	impatient, giveUp := context.WithCancel(f.ctx())
	first := make(chan error, 1)
	go func() {
		_, err := f.NodeStageVolume(impatient, &csi.NodeStageVolumeRequest{
			VolumeId: slow.GetId(), StagingTargetPath: f.staging(slow), VolumeCapability: filesystemAccess(writer),
		})
		first <- err
	}()
	<-checking
	giveUp()
	wantError(t, <-first, codes.Canceled, "")

	wantError(t, f.stage(slow, filesystemAccess(writer)), codes.Aborted, "another operation on volume")
	wantError(t, f.unstage(slow), codes.Aborted, "another operation on volume")
	must.Succeed(f.t, f.stage(quick, filesystemAccess(writer)))

	close(proceed)
	waittest.Succeeds(t, "the slow volume is staged", func() error { return f.stage(slow, filesystemAccess(writer)) })
	if n := f.fileSystems.Checks(slow.GetDevicePath()); n != 1 {
		t.Errorf("checked %d times", n)
	}
	f.wantLayers(2)
}

func TestStoppingThePluginEndsALongCheck(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
	checking := make(chan struct{})
	f.fileSystems.Checking = func(ctx context.Context, _ string) error {
		close(checking)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	staged := make(chan error, 1)
	go func() { staged <- f.stage(v, filesystemAccess(writer)) }()
	<-checking
	f.Stop(t)
	if err := <-staged; err == nil {
		t.Error("the stage succeeded")
	}
	f.wantLayers(0)
}

func TestStageWaitsForALVMDThatRestarts(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.machine.StopLVMD()
	// Only the stage dials now, to ask for the volume.
	stopped := must.Get(net.Listen("unix", f.machine.LVMDSocket()))(t)
	staged := make(chan error, 1)
	go func() { staged <- f.stage(v, filesystemAccess(writer)) }()
	dialled := must.Get(stopped.Accept())(t)
	must.Succeed(t, errors.Join(dialled.Close(), stopped.Close()))
	f.machine.StartLVMD()
	must.Succeed(f.t, <-staged)
	f.wantLayers(1)
}

func TestAStageOnTheWrongNodeNamesTheRightOne(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	stage := func(id, on string) error {
		_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: f.staging(v),
			VolumeCapability: filesystemAccess(writer), VolumeContext: map[string]string{names.ContextNode: on}})
		return err
	}
	const away = "00000000000000000000000000000000"
	wantError(t, stage(away, "node-b"), codes.NotFound, "is on node node-b, this node is "+drivertest.NodeName)
	wantError(t, stage(away, drivertest.NodeName), codes.NotFound, "no volume")
	wantError(t, stage(away, ""), codes.NotFound, "no volume")
	f.wantLayers(0)
	// The node may have been renamed: a volume found here is here.
	must.Succeed(t, stage(v.GetId(), "node-b"))
	f.wantLayers(1)
}

func TestUnstageNeedsNeitherLVMDNorADevice(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	f.mounts.Kill(deviceOf(v))
	f.mounts.RemoveNode(v.GetDevicePath())
	f.machine.StopLVMD()
	must.Succeed(f.t, f.unstage(v))
	f.wantLayers(0)
}

func TestUnstageTakesAwayWhatAnEarlierRunStacked(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	for range 2 {
		must.Succeed(f.t, f.mounts.Bind(f.staging(v), f.staging(v), false))
	}
	must.Succeed(f.t, f.unstage(v))
	f.wantLayers(0)
}

func TestUnstageSaysWhenTheFileSystemIsInUse(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	f.mounts.SetBusy(f.staging(v), true)
	wantError(t, f.unstage(v), codes.FailedPrecondition, "busy")
	f.mounts.SetBusy(f.staging(v), false)
	must.Succeed(f.t, f.unstage(v))
}

func TestDAXVolumes(t *testing.T) {
	dax := func(v *lvmdv1.Volume) { v.Dax = true }
	t.Run("are mounted with DAX", func(t *testing.T) {
		f := newFixture(t)
		v := f.alter(f.volume("a", "xfs"), dax)
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		points, _ := f.mounts.Below(f.machine.KubeletDir)
		if got := strings.Join(points[0].FSOptions, ","); got != "rw,dax=always,nouuid" {
			t.Errorf("options %q", got)
		}
	})
	t.Run("are not left mounted without", func(t *testing.T) {
		f := newFixture(t)
		v := f.alter(f.volume("a", "xfs"), dax)
		f.mounts.DropOption("dax=always")
		wantError(t, f.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "without DAX")
		f.wantLayers(0)
	})
	t.Run("are not accepted without from a plugin that was killed before it looked", func(t *testing.T) {
		f := newFixture(t)
		v := f.alter(f.volume("a", "xfs"), dax)
		leave := func() {
			must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: v.GetDevicePath()}, f.staging(v), "xfs", nil))
		}
		leave()
		must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
		points, _ := f.mounts.Below(f.machine.KubeletDir)
		if len(points) != 1 || !slices.Contains(points[0].FSOptions, "dax=always") {
			t.Errorf("layers %+v, want one with dax=always", points)
		}
		must.Succeed(f.t, f.unstage(v))
		leave()
		f.mounts.DropOption("dax=always")
		wantError(t, f.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "without DAX")
		f.wantLayers(0)
		// Pods keep what they use, but no new Pod gets it.
		leave()
		must.Succeed(f.t, f.mounts.Bind(f.staging(v), f.machine.MakeDir("elsewhere"), false))
		wantError(t, f.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "without DAX")
		f.wantLayers(2)
	})
}

func TestStageWithAnSELinuxContext(t *testing.T) {
	label := func(categories string) *csi.VolumeCapability {
		// The kubelet adds it after the PersistentVolume's options.
		return filesystemAccess(writer, "noatime", `context="system_u:object_r:container_file_t:s0:`+categories+`"`)
	}
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, label("c15,c25")))
	points := must.Get(f.mounts.Below(f.machine.KubeletDir))(f.t)
	want := []string{"rw", "noatime", `context="system_u:object_r:container_file_t:s0:c15,c25"`}
	if !slices.Equal(points[0].FSOptions, want) {
		t.Errorf("options %q, want %q", points[0].FSOptions, want)
	}
	must.Succeed(f.t, f.stage(v, label("c15,c25")))
	must.Succeed(f.t, f.stage(v, label("c25,c15")))
	wantError(t, f.stage(v, label("c15,c26")), codes.AlreadyExists,
		`with the SELinux context "system_u:object_r:container_file_t:s0:c15,c25" already, "system_u:object_r:container_file_t:s0:c15,c26" was asked for`)
	wantError(t, f.stage(v, filesystemAccess(writer, "noatime")), codes.AlreadyExists, `"" was asked for`)
	must.Succeed(f.t, f.publish(v, "pod", label("c15,c25"), false))
	points = must.Get(f.mounts.Below(f.machine.KubeletDir))(f.t)
	for _, p := range points {
		if !slices.Equal(p.FSOptions, want) {
			t.Errorf("options at %s %q, want %q", p.Path, p.FSOptions, want)
		}
	}
	f.wantLayers(2)
	must.Succeed(f.t, f.unpublish(v, "pod"))
	must.Succeed(f.t, f.unstage(v))
	must.Succeed(f.t, f.stage(v, label("c15,c26")))
}

func TestStageSaysWhereTheKernelSaysWhichOptionItRefuses(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.mounts.FailMounts(syscall.EINVAL)
	wantError(t, f.stage(v, filesystemAccess(writer, "noatime")), codes.Internal, `options "noatime": `)
	wantError(t, f.stage(v, filesystemAccess(writer, "noatime")), codes.Internal, "invalid argument: the node's kernel log says why")
}

func TestStageQuotesTheKernel(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	f.mounts.FailMounts(&mount.KernelError{Step: "option commit", Messages: []string{"ext4: Bad value for 'commit'"}, Err: syscall.EINVAL})
	err := f.stage(v, filesystemAccess(writer, "commit=5"))
	wantError(t, err, codes.Internal, `option commit: invalid argument: the kernel says "ext4: Bad value for 'commit'"`)
	if strings.Contains(err.Error(), "kernel log") {
		t.Errorf("it refers to the log all the same: %v", err)
	}
}

func TestStageIsOfTheVolumesDeviceOnly(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	// The node belongs to another device when it is mounted.
	swapped := mount.Device{Major: 253, Minor: 250}
	f.fileSystems.Probing = func(device string) { f.mounts.AddNode(device, swapped, gib) }
	wantError(t, f.stage(v, filesystemAccess(writer)), codes.Internal, mount.ErrUnverified.Error())
	f.wantLayers(0)
}

// Otherwise lvmd would remove the volume once its claim and PersistentVolume
// are gone.
func TestAVolumeIsKeptBeforeAPodGetsIt(t *testing.T) {
	for _, fsType := range []string{"ext4", ""} {
		f := newFixture(t)
		v := f.alter(f.volume("a", fsType), func(v *lvmdv1.Volume) { v.Provisional = true })
		access := filesystemAccess(writer)
		if fsType == "" {
			access = blockAccess(writer)
		}
		f.lvmd.SetHooks(lvmdfake.Hooks{BeforeKeep: func(context.Context, *lvmdv1.KeepVolumeRequest) error {
			f.wantLayers(0)
			return lvmdfake.Error(codes.Aborted, names.ReasonOperationPending, "it grows")
		}})
		wantError(t, f.stage(v, access), codes.Aborted, "it grows")
		f.wantLayers(0)
		f.lvmd.SetHooks(lvmdfake.Hooks{})
		must.Succeed(t, f.stage(v, access))
		if f.lvmd.Volumes()["a"].GetProvisional() {
			t.Errorf("a staged volume with file system %q is provisional", fsType)
		}
		must.Succeed(t, f.unstage(v))
	}
}

func TestOnlyNewFileSystemsGetAnOwnerOfTheirRoot(t *testing.T) {
	settings := map[string]string{"root-mode": "1777", "label": "tmp"}
	for name, test := range map[string]struct {
		change func(*lvmdv1.Volume)
		want   bool
	}{
		"a mode":         {func(v *lvmdv1.Volume) { v.FsSettings = settings }, true},
		"other settings": {func(v *lvmdv1.Volume) { v.FsSettings = map[string]string{"label": "tmp"} }, false},
		"a clone": {func(v *lvmdv1.Volume) {
			v.FsSettings, v.Source = settings, &lvmdv1.VolumeSource{VolumeId: "cv1"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			v := f.alter(f.volume("a", "ext4"), test.change)
			must.Succeed(t, f.stage(v, filesystemAccess(writer)))
			var want []string
			if test.want {
				want = []string{f.staging(v) + "  1777"}
			}
			if got := f.fileSystems.Roots(); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
