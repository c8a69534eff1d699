//go:build kernel

package driver_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

var plainText = bytes.Repeat([]byte("plain text that must not be found "), 128)

func newRealLUKS(t *testing.T) *real {
	t.Helper()
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 32 * mib
	t.Cleanup(func() {
		// Leftovers of a failed test.
		if left, err := r.machine.LUKS.Mappings(); err != nil || len(left) > 0 {
			t.Errorf("left open: %q, error %v", left, err)
			for _, id := range left {
				_ = r.machine.LUKS.Close(r.ctx(), id)
			}
		}
	})
	return r
}

// TestRealVolumeWithAKeptKey creates each file system, grows it in use, closes
// it as a reboot does, and opens it again with its data.
func TestRealVolumeWithAKeptKey(t *testing.T) {
	r := newRealLUKS(t)
	for fsType, size := range map[string]int64{"ext4": 32 * mib, "xfs": 304 * mib, "btrfs": 128 * mib} {
		t.Run("type "+fsType, func(t *testing.T) {
			r.size = size
			v := r.locked("kept-"+fsType, fsType)
			access, file := filesystemAccess(multi), filepath.Join(r.target(v, "one"), "file")
			for range 2 { // the second time it is mounted, and its key is not tested
				must.Succeed(r.t, r.stage(v, access))
				must.Succeed(r.t, r.publish(v, "one", access, false))
			}
			r.write(file, string(plainText))
			wantError(t, second(r.machine.LVMD.DeleteVolume(r.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})), codes.FailedPrecondition,
				"("+luks.MappingPrefix+v.GetId()+")") // the error names the holder
			if tags := drivertest.ByHand(t, "lvm", "lvs", "--noheadings", "-o", "tags", drivertest.Group+"/"+v.GetId(), "--config", drivertest.HandConfig); !strings.Contains(tags, "carve.encrypted") {
				t.Errorf("the volume's tags do not say that it has a header: %s", tags)
			}
			r.grow(v)
			stats, err := r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: r.target(v, "one")})
			if total := stats.GetUsage()[0].GetTotal(); err != nil || total <= v.GetSizeBytes() || total > 2*v.GetSizeBytes() {
				t.Errorf("total %d of %d, error %v", total, 2*v.GetSizeBytes(), err)
			}
			health, err := r.NodeGetVolumeHealth(r.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId()})
			if err != nil || len(health.GetVolumeHealth().GetHealthStatuses()) > 0 {
				t.Errorf("health %v, %v", health, err)
			}
			// Without unstage, as when the node restarts.
			must.Succeed(r.t, errors.Join(r.machine.Mounts.Unmount(r.target(v, "one")), r.machine.Mounts.Unmount(r.staging(v))))
			drivertest.ByHand(t, "dmsetup", "remove", "--retry", luks.MappingPrefix+v.GetId())

			r.secrets["key"] = "hunter3"
			wantError(t, r.stage(v, access), codes.FailedPrecondition, luks.ErrWrongKey.Error())
			r.wantLocked(v)
			r.secrets["key"] = "hunter2"
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "one", access, false))
			r.wantFile(file, string(plainText))
			if r.holds(v.GetDevicePath(), v.GetSizeBytes(), plainText[:64]) {
				t.Error("plain text is on the disk")
			}
			must.Succeed(r.t, errors.Join(r.unpublish(v, "one"), r.unstage(v), r.unstage(v)))
			r.wantLocked(v)
			r.wantLayers(0)
			r.delete(v)
			r.waitForSpace()
		})
	}
}

func (r *real) grow(v *lvmdv1.Volume) {
	r.t.Helper()
	_, err := r.machine.LVMD.ExpandVolume(r.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * v.GetSizeBytes()})
	must.Succeed(r.t, err)
	got, err := r.NodeExpandVolume(r.ctx(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.GetId(), VolumePath: r.target(v, "one"), StagingTargetPath: r.staging(v),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * v.GetSizeBytes()},
	})
	if err != nil || got.GetCapacityBytes() != 2*v.GetSizeBytes() {
		r.t.Errorf("got %v, %v", got, err)
	}
}

func TestRealRawBlockVolumeWithAKeptKey(t *testing.T) {
	r := newRealLUKS(t)
	r.size = 8 * mib
	v := r.locked("kept", "")
	access, file := blockAccess(multi), r.target(v, "one")
	must.Succeed(r.t, r.stage(v, access))
	must.Succeed(r.t, r.publish(v, "one", access, false))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must.Succeed(r.t, err)
	start := make([]byte, 4096)
	if _, err := f.ReadAt(start, 0); err != nil || len(bytes.Trim(start, "\x00")) > 0 {
		t.Errorf("it does not begin with zeroes, error %v", err)
	}
	r.grow(v)
	_, err = f.WriteAt(plainText, v.GetSizeBytes()) // in the part that was added
	must.Succeed(r.t, errors.Join(err, f.Sync(), f.Close()))
	wantError(t, r.unstage(v), codes.FailedPrecondition, "in use")
	must.Succeed(r.t, errors.Join(r.unpublish(v, "one"), r.unstage(v)))
	r.wantLocked(v)
	if r.holds(v.GetDevicePath(), v.GetSizeBytes(), plainText[:64]) {
		t.Error("plain text is on the disk")
	}
	must.Succeed(r.t, r.stage(v, access))
	must.Succeed(r.t, r.publish(v, "one", access, true))
	if !r.holds(file, v.GetSizeBytes(), plainText) {
		t.Error("what was written is gone")
	}
	must.Succeed(r.t, errors.Join(r.unpublish(v, "one"), r.unstage(v)))
	r.wantLocked(v)
	r.delete(v)
	r.waitForSpace()
}

// The plugin stops, and kills its tools, in the middle of the first stage, ever
// later. TestRealPluginIsKilledAtEveryPoint has it killed instead.
func TestRealMakingOfAVolumeWithAKeptKeyIsStopped(t *testing.T) {
	dir := t.TempDir()
	waits := filepath.Join(dir, "waits")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := newRealLUKS(t)
	v := r.locked("kept", "ext4")
	for _, place := range []struct {
		name, tool, does string
		reached          func() bool
	}{
		{"a header is there", "cryptsetup", `case "$*" in *luksFormat*) /usr/sbin/cryptsetup "$@";; *) exec /usr/sbin/cryptsetup "$@";; esac`, func() bool {
			state, err := r.machine.LUKS.Inspect(v.GetDevicePath(), v.GetId())
			return err == nil && state != luks.Blank
		}},
		{"the volume is open", "mkfs.ext4", "", func() bool {
			_, there, err := r.machine.LUKS.Mapping(v.GetId())
			return err == nil && there
		}},
	} {
		tool := filepath.Join(dir, place.tool)
		must.Succeed(t, os.WriteFile(tool, []byte("#!/bin/sh\n"+place.does+"\ntouch "+waits+"\nexec sleep 1000000\n"), 0o700))
		ended := make(chan error, 1)
		go func() { ended <- r.stage(v, access(v)) }()
		waittest.Until(t, "a tool waits", func() bool { _, err := os.Stat(waits); return err == nil || len(ended) > 0 })
		if !place.reached() {
			t.Errorf("where %s waits, it is not so that %s", place.tool, place.name)
		}
		r.Stop(t)
		err := <-ended
		must.Succeed(t, errors.Join(os.Remove(tool), os.Remove(waits)))
		state, inspectErr := r.machine.LUKS.Inspect(v.GetDevicePath(), v.GetId())
		if err == nil || inspectErr != nil || state == luks.Made {
			t.Errorf("stopped when %s: %v, the volume is %v, %v; want a stage that failed and a volume that is not made", place.name, err, state, inspectErr)
		}
		wantNoTool(t, tools...)
		r.Plugin = r.machine.Start()
	}
	must.Succeed(r.t, r.stage(v, access(v)))
	must.Succeed(r.t, r.publish(v, "one", access(v), false))
	r.write(filepath.Join(r.target(v, "one"), "file"), "content")
	r.wantLayers(2)
	if left := drivertest.ByHand(t, "dmsetup", "ls"); strings.Count(left, luks.MappingPrefix) != 1 {
		t.Errorf("devices:\n%s", left)
	}
	must.Succeed(r.t, errors.Join(r.unpublish(v, "one"), r.unstage(v)))
	r.wantLocked(v)
	r.delete(v)
	r.waitForSpace()
}
