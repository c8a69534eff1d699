//go:build kernel

package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

// TestRealScratch crashes a scratch volume: if not unmounted cleanly, it comes
// back empty, with the same settings.
func TestRealScratch(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 64 * mib
	v := r.scratch("scratch")
	r.deleteLater(v)
	access := filesystemAccess(writer)
	must.Succeed(r.t, r.stage(v, access))
	if layer, fs := r.options(r.staging(v)); !slices.Contains(layer, "noatime") || !slices.Contains(fs, "nobarrier") ||
		!slices.Contains(fs, "data=writeback") || !slices.Contains(fs, "commit=300") {
		t.Errorf("options %q, %q", layer, fs)
	}
	r.write(filepath.Join(r.staging(v), "file"), "content")
	must.Succeed(r.t, r.unstage(v))

	must.Succeed(r.t, r.stage(v, access))
	r.wantFile(filepath.Join(r.staging(v), "file"), "content")
	// Like a power cut: writes of the unmount do not reach the disk.
	revive := r.kill(v)
	must.Succeed(r.t, r.unstage(v))
	revive()
	if info, err := filesystem.Probe(v.GetDevicePath()); err != nil || !info.NeedsCheck {
		t.Fatalf("the file system looks clean: %+v, %v", info, err)
	}
	must.Succeed(r.t, r.stage(v, access))
	if _, err := os.Stat(filepath.Join(r.staging(v), "file")); !os.IsNotExist(err) {
		t.Errorf("the file: %v", err)
	}
	features := drivertest.ByHand(t, "dumpe2fs", "-h", v.GetDevicePath())
	if !strings.Contains(features, "fast_commit") || !strings.Contains(features, "Filesystem volume name:   scratch") || !strings.Contains(features, v.GetFsUuid()) {
		t.Errorf("reformatted as\n%s", features)
	}
	if !strings.Contains(r.machine.Log.String(), "reformatted a scratch file system") {
		t.Error("the log does not say that it was reformatted")
	}
	must.Succeed(r.t, r.unstage(v))
}

// TestRealScratchOfBefore mounts a scratch volume as earlier versions made it,
// without a journal. Unless unmounted cleanly it is reformatted with one.
func TestRealScratchOfBefore(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 64 * mib
	v := r.scratch("scratch")
	r.deleteLater(v)
	access := filesystemAccess(writer)
	drivertest.ByHand(t, "tune2fs", "-O", "^has_journal,^fast_commit", v.GetDevicePath())
	must.Succeed(r.t, r.stage(v, access))
	if _, fs := r.options(r.staging(v)); slices.Contains(fs, "data=writeback") || !slices.Contains(fs, "nobarrier") {
		t.Errorf("without a journal: options %q", fs)
	}
	r.write(filepath.Join(r.staging(v), "file"), "content")
	must.Succeed(r.t, r.unstage(v))
	must.Succeed(r.t, r.stage(v, access))
	r.wantFile(filepath.Join(r.staging(v), "file"), "content")
	revive := r.kill(v)
	must.Succeed(r.t, r.unstage(v))
	revive()
	must.Succeed(r.t, r.stage(v, access))
	if _, fs := r.options(r.staging(v)); !slices.Contains(fs, "data=writeback") {
		t.Errorf("reformatted: options %q", fs)
	}
	must.Succeed(r.t, r.unstage(v))
}

// TestRealStraySignatures leaves superblocks of three older file systems on the
// disk where volumes will lie.
func TestRealStraySignatures(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	const foreign = "01234567-89ab-cdef-0123-456789abcdef"
	stray := make([]byte, 68<<10)
	for _, piece := range []struct {
		t        filesystem.Type
		from, to int64
	}{{filesystem.XFS, 0, 1 << 10}, {filesystem.Ext4, 1 << 10, 2 << 10}, {filesystem.Btrfs, 64 << 10, 68 << 10}} {
		image := filepath.Join(t.TempDir(), "image")
		must.Succeed(r.t, os.WriteFile(image, nil, 0o600))
		must.Succeed(r.t, os.Truncate(image, r.size))
		must.Succeed(r.t, filesystem.Format(t.Context(), image, filesystem.FormatOptions{Type: piece.t, UUID: foreign}))
		f, err := os.Open(image)
		must.Succeed(r.t, err)
		_, err = f.ReadAt(stray[piece.from:piece.to], piece.from)
		must.Succeed(r.t, errors.Join(err, f.Close()))
	}
	disk := must.Get(os.OpenFile("/dev/vdb", os.O_WRONLY|os.O_SYNC, 0))(r.t)
	for i := range filesystem.Types() {
		// The group's data begins at 2 MiB, and volumes will follow one
		// another.
		must.Get(disk.WriteAt(stray, 2*mib+int64(i)*r.size))(r.t)
	}
	must.Succeed(r.t, disk.Close())
	for _, fsType := range filesystem.Types() {
		v := r.volume(string(fsType), string(fsType))
		r.deleteLater(v)
		// wipefs lists all signatures, so leftovers would show.
		out := drivertest.ByHand(t, "wipefs", "--noheadings", "--output", "TYPE,UUID", v.GetDevicePath())
		if got := strings.Fields(out); len(got) != 2 || got[0] != string(fsType) || got[1] != v.GetFsUuid() {
			t.Errorf("%s carries %q", fsType, out)
		}
		must.Succeed(r.t, r.stage(v, filesystemAccess(writer)))
		must.Succeed(r.t, r.unstage(v))
		// A foreign UUID: neither mounted nor formatted.
		must.Succeed(r.t, filesystem.Format(t.Context(), v.GetDevicePath(), filesystem.FormatOptions{Type: fsType, UUID: foreign}))
		wantError(t, r.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "not its own, UUID "+foreign)
		if info, err := filesystem.Probe(v.GetDevicePath()); err != nil || info.UUID != foreign {
			t.Errorf("afterwards: %+v, %v", info, err)
		}
	}
}

// TestRealClonedBtrfs mounts a clone beside its source, which the kernel
// refuses while they share a UUID.
func TestRealClonedBtrfs(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 256 * mib
	v := r.volume("source", "btrfs")
	access := filesystemAccess(writer)
	must.Succeed(r.t, r.stage(v, access))
	r.write(filepath.Join(r.staging(v), "file"), "content")
	must.Succeed(r.t, r.unstage(v))
	// Larger than its source, so it must grow.
	clone := must.Get(r.machine.LVMD.CreateVolume(r.ctx(), &lvmdv1.CreateVolumeRequest{
		Name: "clone", RequiredBytes: v.GetSizeBytes() + 64*mib, Mode: v.GetMode(), FsType: "btrfs",
		Source: &lvmdv1.VolumeSource{VolumeId: v.GetId()},
	}))(r.t)
	all := []*lvmdv1.Volume{v, clone.GetVolume()}
	for _, one := range all {
		r.deleteLater(one)
		must.Succeed(r.t, r.stage(one, access))
	}
	r.wantLayers(len(all))
	for i, one := range all {
		r.wantAt(r.staging(one), mount.State{Mounted: true, Device: deviceOf(one)})
		r.wantFile(filepath.Join(r.staging(one), "file"), "content")
		r.write(filepath.Join(r.staging(one), "own"), one.GetId())
		if usage, err := r.machine.Mounts.Usage(r.staging(one)); err != nil || usage.TotalBytes > one.GetSizeBytes() || usage.TotalBytes < one.GetSizeBytes()-mib {
			t.Errorf("volume %d: %+v, %v, want %d bytes", i, usage, err, one.GetSizeBytes())
		}
	}
	for _, one := range all {
		r.wantFile(filepath.Join(r.staging(one), "own"), one.GetId())
		must.Succeed(r.t, r.unstage(one))
	}
}
