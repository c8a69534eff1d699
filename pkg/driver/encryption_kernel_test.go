//go:build kernel

package driver_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

// sealed creates a volume with an ephemeral key that only the kernel has.
func (r *real) sealed(fsType string, size int64) *lvmdv1.Volume {
	r.t.Helper()
	ask := &lvmdv1.CreateVolumeRequest{
		Name: "sealed-" + fsType, RequiredBytes: size, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: fsType, Encryption: "ephemeral",
	}
	if fsType == "" {
		ask.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	got := must.Get(r.machine.LVMD.CreateVolume(r.ctx(), ask))(r.t)
	return got.GetVolume()
}

// TestRealEncryptedVolumes stages, publishes, grows and removes encrypted
// volumes, and searches the devices below them for what was written.
func TestRealEncryptedVolumes(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	secret := bytes.Repeat([]byte("plain text that must not be found "), 1<<10)
	for fsType, size := range map[string]int64{"ext4": 32 * mib, "xfs": 304 * mib, "btrfs": 128 * mib, "": 16 * mib} {
		t.Run("type "+fsType, func(t *testing.T) {
			v := r.sealed(fsType, size)
			access, file := filesystemAccess(multi), filepath.Join(r.target(v, "one"), "file")
			if fsType == "" {
				access, file = blockAccess(multi), r.target(v, "one")
			}
			for range 2 {
				must.Succeed(r.t, r.stage(v, access))
				must.Succeed(r.t, r.publish(v, "one", access, false))
			}
			f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
			must.Succeed(r.t, err)
			_, err = f.Write(secret)
			must.Succeed(r.t, err)
			must.Succeed(r.t, f.Sync())
			larger := v.GetSizeBytes() + 32*mib
			_, err = r.machine.LVMD.ExpandVolume(r.ctx(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: larger})
			must.Succeed(r.t, err)
			got, err := r.NodeExpandVolume(r.ctx(), &csi.NodeExpandVolumeRequest{
				VolumeId: v.GetId(), VolumePath: r.target(v, "one"), StagingTargetPath: r.staging(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: larger},
			})
			if err != nil || got.GetCapacityBytes() != larger {
				t.Errorf("got %v, %v", got, err)
			}
			stats, err := r.NodeGetVolumeStats(r.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetId(), VolumePath: r.target(v, "one")})
			if total := stats.GetUsage()[0].GetTotal(); err != nil || total <= v.GetSizeBytes()/10*6 || total > larger {
				t.Errorf("total %d of %d, %v", total, larger, err)
			}
			health, err := r.NodeGetVolumeHealth(r.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId(), VolumePublishPath: r.target(v, "one")})
			if err != nil || len(health.GetVolumeHealth().GetHealthStatuses()) > 0 {
				t.Errorf("health %v, %v", health, err)
			}
			read := make([]byte, len(secret))
			if _, err := f.ReadAt(read, 0); err != nil || !bytes.Equal(read, secret) {
				t.Errorf("what was written is not read, %v", err)
			}
			must.Succeed(r.t, f.Close())
			must.Succeed(r.t, r.unpublish(v, "one"))
			must.Succeed(r.t, r.unstage(v))
			r.wantLayers(0)
			if !r.holds(v.GetDevicePath(), v.GetSizeBytes(), secret[:4096]) {
				t.Error("what was written is not on the volume")
			}
			if r.holds("/dev/"+v.GetVgName()+"/"+v.GetId(), v.GetSizeBytes(), secret[:4096]) {
				t.Error("plain text is on the disk")
			}
			r.delete(v)
			if _, err := os.Stat(v.GetDevicePath()); !os.IsNotExist(err) {
				t.Errorf("the device is there after the deletion, %v", err)
			}
		})
	}
	r.waitForSpace()
}

// holds reports whether the first 304 MiB of a device contain text. It fails
// the test if the device is unreadable or shorter than it should be.
func (r *real) holds(device string, size int64, text []byte) bool {
	r.t.Helper()
	f := must.Get(os.Open(device))(r.t)
	defer f.Close()
	chunk, read := make([]byte, 8*mib), int64(0)
	for range 38 {
		n, err := io.ReadFull(f, chunk)
		if bytes.Contains(chunk[:n], text) {
			return true
		}
		read += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if read < size {
				r.t.Errorf("%s has %d bytes, want at least %d", device, read, size)
			}
			return false
		}
		must.Succeed(r.t, err)
	}
	return false
}
