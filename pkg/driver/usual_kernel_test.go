//go:build kernel

package driver_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/must"
)

func TestRealFileSystems(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume(fsType, fsType)
			defer r.delete(v)
			// Calls that run a program fail.
			t.Setenv("PATH", "/nowhere")
			access := filesystemAccess(multi, "noatime")
			for range 2 {
				must.Succeed(r.t, r.stage(v, access))
				must.Succeed(r.t, r.publish(v, "one", access, false))
				must.Succeed(r.t, r.publish(v, "two", access, true))
			}
			r.wantLayers(3)
			if layer, _ := r.options(r.target(v, "one")); !slices.Contains(layer, "noatime") {
				t.Errorf("options %q", layer)
			}
			r.write(filepath.Join(r.target(v, "one"), "file"), "content")
			r.wantFile(filepath.Join(r.target(v, "two"), "file"), "content")
			if err := os.WriteFile(filepath.Join(r.target(v, "two"), "other"), nil, 0o600); !isErrno(err, syscall.EROFS) {
				t.Errorf("writing read-only: %v", err)
			}
			r.wantStats(v, r.target(v, "one"))

			// A restarted plugin knows the existing state.
			r.Stop(t)
			r.Plugin = r.machine.Start()
			must.Succeed(r.t, r.publish(v, "one", access, false))
			r.wantLayers(3)

			for range 2 {
				must.Succeed(r.t, r.unpublish(v, "one"))
				must.Succeed(r.t, r.unpublish(v, "two"))
				r.wantGone(r.target(v, "one"))
				must.Succeed(r.t, r.unstage(v))
			}
			r.wantLayers(0)
			must.Succeed(r.t, r.stage(v, access))
			r.wantFile(filepath.Join(r.staging(v), "file"), "content")
			must.Succeed(r.t, r.unstage(v))
		})
	}
}

func (r *real) wantStats(v *lvmdv1.Volume, path string) {
	r.t.Helper()
	got := must.Get(r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: path}))(r.t)
	for _, u := range got.GetUsage() {
		if u.GetTotal() <= 0 || u.GetAvailable() < u.GetTotal()/2 || u.GetUsed() > u.GetTotal()/2 || u.GetUsed() < 0 {
			r.t.Errorf("got %v", u)
		}
	}
	if total := got.GetUsage()[0].GetTotal(); total > v.GetSizeBytes() || total < v.GetSizeBytes()/2 {
		r.t.Errorf("total %d of %d", total, v.GetSizeBytes())
	}
}

func TestRealRawBlock(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("raw", "")
	r.deleteLater(v)
	access := blockAccess(single)
	t.Setenv("PATH", "/nowhere")
	for range 2 {
		must.Succeed(r.t, r.stage(v, access))
		must.Succeed(r.t, r.publish(v, "one", access, false))
	}
	r.wantLayers(1)
	wantError(t, r.publish(v, "two", access, false), codes.FailedPrecondition, "one Pod at a time")
	want := bytes.Repeat([]byte("carve"), 1000)
	must.Succeed(r.t, os.WriteFile(r.target(v, "one"), want, 0))
	got := make([]byte, len(want))
	f, err := os.Open(v.GetDevicePath())
	must.Succeed(r.t, err)
	_, err = io.ReadFull(f, got)
	f.Close()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the device holds %.20q, %v", got, err)
	}
	stats, err := r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: r.target(v, "one")})
	if err != nil || stats.GetUsage()[0].GetTotal() != r.size {
		t.Errorf("got %v, %v", stats, err)
	}
	for range 2 {
		must.Succeed(r.t, r.unpublish(v, "one"))
		must.Succeed(r.t, r.unstage(v))
	}
	r.wantLayers(0)
	must.Succeed(r.t, r.publish(v, "two", access, true))
	r.wantAt(r.target(v, "two"), mount.State{Mounted: true, Device: deviceOf(v), Node: true, ReadOnly: true})
	must.Succeed(r.t, r.unpublish(v, "two"))
}

func TestRealAccessModes(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("fs", "ext4")
	r.deleteLater(v)
	t.Run("a volume for one Pod is refused to a second", func(t *testing.T) {
		must.Succeed(r.t, r.stage(v, filesystemAccess(single)))
		must.Succeed(r.t, r.publish(v, "one", filesystemAccess(single), false))
		wantError(t, r.publish(v, "two", filesystemAccess(single), false), codes.FailedPrecondition, r.target(v, "one"))
		must.Succeed(r.t, r.unpublish(v, "one"))
		must.Succeed(r.t, r.publish(v, "two", filesystemAccess(single), false))
		must.Succeed(r.t, r.unpublish(v, "two"))
		must.Succeed(r.t, r.unstage(v))
	})
	t.Run("a volume staged read-only is read-only everywhere", func(t *testing.T) {
		must.Succeed(r.t, r.stage(v, filesystemAccess(reader)))
		must.Succeed(r.t, r.stage(v, filesystemAccess(reader)))
		must.Succeed(r.t, r.publish(v, "one", filesystemAccess(reader), false))
		must.Succeed(r.t, r.publish(v, "one", filesystemAccess(reader), false))
		if err := os.WriteFile(filepath.Join(r.target(v, "one"), "file"), nil, 0o600); !isErrno(err, syscall.EROFS) {
			t.Errorf("got %v", err)
		}
		must.Succeed(r.t, r.unpublish(v, "one"))
		must.Succeed(r.t, r.unstage(v))
	})
	t.Run("mount options reach the file system", func(t *testing.T) {
		must.Succeed(r.t, r.stage(v, filesystemAccess(writer, "noatime,commit=17", "data=writeback")))
		layer, fs := r.options(r.staging(v))
		if !slices.Contains(layer, "noatime") || !slices.Contains(fs, "commit=17") || !slices.Contains(fs, "data=writeback") {
			t.Errorf("got %q, %q", layer, fs)
		}
		must.Succeed(r.t, r.unstage(v))
	})
	t.Run("a file system in use is not unmounted", func(t *testing.T) {
		must.Succeed(r.t, r.stage(v, filesystemAccess(writer)))
		must.Succeed(r.t, r.publish(v, "one", filesystemAccess(writer), false))
		f := must.Get(os.Create(filepath.Join(r.target(v, "one"), "open")))(r.t)
		wantError(t, r.unpublish(v, "one"), codes.FailedPrecondition, "busy")
		must.Succeed(r.t, f.Close())
		must.Succeed(r.t, r.unpublish(v, "one"))
		must.Succeed(r.t, r.unstage(v))
	})
	r.wantLayers(0)
}

func TestRealGrowingWhileInUse(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs", ""} {
		t.Run("type "+fsType, func(t *testing.T) {
			v := r.volume("grow"+fsType, fsType)
			access := filesystemAccess(writer)
			if fsType == "" {
				access = blockAccess(writer)
			}
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "one", access, false))
			larger := v.GetSizeBytes() * 2
			_, err := r.machine.LVMD.ExpandVolume(r.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: larger})
			must.Succeed(r.t, err)
			for range 2 {
				got, err := r.NodeExpandVolume(r.ctx(), &csi.NodeExpandVolumeRequest{
					VolumeId: v.GetId(), VolumePath: r.target(v, "one"), StagingTargetPath: r.staging(v),
					CapacityRange: &csi.CapacityRange{RequiredBytes: larger},
				})
				if err != nil || got.GetCapacityBytes() != larger {
					t.Fatalf("got %v, %v", got, err)
				}
			}
			stats, err := r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: r.target(v, "one")})
			if total := stats.GetUsage()[0].GetTotal(); err != nil || total < larger/10*8 || total > larger {
				t.Errorf("total %d of %d, %v", total, larger, err)
			}
			must.Succeed(r.t, r.unpublish(v, "one"))
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
		})
	}
}

// One Pod's read-only mount precedes all others in the mount table, as may
// happen after a restart.
func TestRealGrowingBesideAReadOnlyMount(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("beside-"+fsType, fsType)
			access := filesystemAccess(multi)
			must.Succeed(t, r.stage(v, access))
			must.Succeed(t, r.publish(v, "reader", access, true))
			must.Succeed(t, r.publish(v, "writer", access, false))
			elsewhere := t.TempDir()
			for _, move := range [][2]string{{r.staging(v), elsewhere}, {elsewhere, r.staging(v)}} {
				must.Succeed(t, unix.Mount(move[0], move[1], "", unix.MS_BIND, ""))
				must.Succeed(t, unix.Unmount(move[0], 0))
			}
			larger := v.GetSizeBytes() * 2
			must.Get(r.machine.LVMD.ExpandVolume(r.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: larger}))(t)
			must.Get(r.NodeExpandVolume(r.ctx(), &csi.NodeExpandVolumeRequest{
				VolumeId: v.GetId(), VolumePath: r.target(v, "writer"), StagingTargetPath: r.staging(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: larger},
			}))(t)
			stats := must.Get(r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: r.target(v, "writer")}))(t)
			if total := stats.GetUsage()[0].GetTotal(); total < larger/10*8 || total > larger {
				t.Errorf("total %d of %d", total, larger)
			}
			must.Succeed(t, r.unpublish(v, "reader"))
			must.Succeed(t, r.unpublish(v, "writer"))
			must.Succeed(t, r.unstage(v))
			r.delete(v)
		})
	}
}

// TestRealCallsAtOnce sends each call several times at once for several
// volumes, which no kubelet does.
func TestRealCallsAtOnce(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 64 * mib
	var volumes []*lvmdv1.Volume
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		fsType := "ext4"
		if name > "d" {
			fsType = ""
		}
		v := r.volume(name, fsType)
		r.deleteLater(v)
		volumes = append(volumes, v)
	}
	access := func(v *lvmdv1.Volume) *csi.VolumeCapability {
		if v.GetFsType() == "" {
			return blockAccess(multi)
		}
		return filesystemAccess(multi)
	}
	all := func(what string, call func(v *lvmdv1.Volume) error) {
		t.Helper()
		var wg sync.WaitGroup
		for _, v := range volumes {
			for range 4 {
				wg.Go(func() {
					for {
						err := call(v)
						if status.Code(err) == codes.Aborted {
							continue
						}
						if err != nil {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
				})
			}
		}
		wg.Wait()
	}
	for range 3 {
		all("stage", func(v *lvmdv1.Volume) error { return r.stage(v, access(v)) })
		r.wantLayers(4)
		all("publish", func(v *lvmdv1.Volume) error { return r.publish(v, "pod", access(v), false) })
		r.wantLayers(4 + 6)
		all("unpublish", func(v *lvmdv1.Volume) error { return r.unpublish(v, "pod") })
		r.wantLayers(4)
		all("unstage", func(v *lvmdv1.Volume) error { return r.unstage(v) })
		r.wantLayers(0)
	}
}
