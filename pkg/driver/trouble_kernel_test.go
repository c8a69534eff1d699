//go:build kernel

package driver_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestRealFileSystemsAfterAPowerCut(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("cut"+fsType, fsType)
			access := filesystemAccess(writer)
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "pod", access, false))
			r.write(filepath.Join(r.target(v, "pod"), "kept"), "content")
			r.shutDown(r.staging(v))

			// Though dead, it can be unmounted.
			if err := os.WriteFile(filepath.Join(r.target(v, "pod"), "lost"), []byte("x"), 0o600); err == nil {
				t.Error("a file system that was shut down takes writes")
			}
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
			r.wantLayers(0)

			info, err := filesystem.Probe(v.GetDevicePath())
			if err != nil || info.NeedsCheck != (fsType == "ext4") {
				t.Errorf("got %+v, %v", info, err)
			}
			must.Succeed(r.t, r.stage(v, access))
			r.wantFile(filepath.Join(r.staging(v), "kept"), "content")
			if checked := strings.Contains(r.machine.Log.String(), "checked the file system"); checked != (fsType == "ext4") {
				t.Errorf("checked: %t", checked)
			}
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
			r.machine.Log.Reset()
		})
	}
}

func TestRealFailedFileSystemIsNotRepairedWhileItIsMountedElsewhere(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("failed", "xfs")
	access := filesystemAccess(multi)
	must.Succeed(t, r.stage(v, access))
	must.Succeed(t, r.publish(v, "pod", access, false))
	r.shutDown(r.staging(v))
	must.Succeed(t, r.unstage(v))
	// A new mount would show the failed file system.
	wantError(t, r.stage(v, access), codes.FailedPrecondition, "it is mounted at "+r.target(v, "pod"))
	r.wantLayers(1)
	must.Succeed(t, r.unpublish(v, "pod"))
	must.Succeed(t, r.stage(v, access))
	must.Succeed(t, r.unstage(v))
	r.delete(v)
}

func TestRealDeadDevice(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, c := range []struct{ fsType, encryption string }{
		{"ext4", ""}, {"xfs", ""}, {"btrfs", ""}, {"", ""},
		{"ext4", names.EncryptionEphemeral}, {"xfs", names.EncryptionEphemeral}, {"ext4", names.EncryptionLUKS}, {"xfs", names.EncryptionLUKS},
	} {
		t.Run("type "+c.fsType+", encryption "+c.encryption, func(t *testing.T) {
			fsType := c.fsType
			var v *lvmdv1.Volume
			switch c.encryption {
			case names.EncryptionEphemeral:
				v = r.sealed(fsType, r.size)
			case names.EncryptionLUKS:
				v = r.locked("locked-"+fsType, fsType)
			default:
				v = r.volume("dead"+fsType, fsType)
			}
			access := filesystemAccess(multi)
			if fsType == "" {
				access = blockAccess(multi)
			}
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "one", access, false))
			if fsType != "" {
				r.write(filepath.Join(r.target(v, "one"), "kept"), "content")
			}
			revive := r.kill(v)
			if fsType != "" {
				// Write metadata so that the file system notices, and again so
				// that it reacts.
				for _, name := range []string{"lost", "too"} {
					if f, err := os.Create(filepath.Join(r.target(v, "one"), name)); err == nil {
						_ = f.Sync()
						f.Close()
					}
				}
				health := must.Get(r.NodeGetVolumeHealth(r.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId()}))(r.t)
				reasons := map[string]bool{}
				for _, e := range health.GetVolumeHealth().GetHealthStatuses() {
					reasons[e.GetReason()] = true
				}
				if !reasons[driver.ReasonFileSystemFailed] && !reasons[driver.ReasonFileSystemErrors] {
					t.Errorf("health %v", health)
				}
				// No new Pod gets a failed file system.
				if err := r.publish(v, "two", access, false); err == nil {
					t.Error("a dead file system was published")
				}
				_ = r.unpublish(v, "two")
			}
			must.Succeed(r.t, r.unpublish(v, "one"))
			must.Succeed(r.t, r.unstage(v))
			r.wantLayers(0)
			r.wantLocked(v)
			if fsType != "" {
				if err := r.stage(v, access); err == nil {
					t.Error("a dead volume was staged")
				}
				r.wantLayers(0)
				r.wantLocked(v)
			}
			revive()
			must.Succeed(r.t, r.stage(v, access))
			if fsType != "" {
				r.wantFile(filepath.Join(r.staging(v), "kept"), "content")
			}
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
		})
	}
	r.waitForSpace()
}

func TestRealDataThatIsLostWithoutHarmToTheFileSystemIsNoticed(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	content := strings.Repeat("of one block that the disk forgets\n", 200)[:4096]
	for fsType, access := range map[string]func(path string) error{
		// ext4 overwrites a file in place.
		"ext4": func(path string) error {
			f := must.Get(os.OpenFile(path, os.O_WRONLY, 0))(r.t)
			defer f.Close()
			must.Get(f.WriteString(strings.ToUpper(content)))(r.t)
			return f.Sync()
		},
		"btrfs": func(path string) error {
			_, err := os.ReadFile(path)
			return err
		},
	} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("part"+fsType, fsType)
			must.Succeed(r.t, r.stage(v, filesystemAccess(writer)))
			path := filepath.Join(r.staging(v), "file")
			r.write(path, content)
			unix.Sync()
			at := locate(t, v.GetDevicePath(), content) / 512
			var start, sectors int64
			var to string
			table := drivertest.ByHand(t, "dmsetup", "table", dmName(v))
			if _, err := fmt.Sscanf(strings.Replace(table, " linear ", " ", 1), "0 %d %s %d", &sectors, &to, &start); err != nil {
				t.Fatalf("table %q: %v", table, err)
			}
			r.swapTable(v, fmt.Sprintf("0 %d linear %s %d\n%d 8 error\n%d %d linear %s %d",
				at, to, start, at, at+8, sectors-at-8, to, start+at+8))
			must.Succeed(r.t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
			if err := access(path); err == nil {
				t.Error("what the disk forgot can be used")
			}
			health := must.Get(r.NodeGetVolumeHealth(r.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: v.GetId()}))(r.t)
			got := health.GetVolumeHealth().GetHealthStatuses()
			if len(got) != 1 || got[0].GetReason() != driver.ReasonFileSystemWarnings {
				t.Errorf("health %v, want %s", got, driver.ReasonFileSystemWarnings)
			}
			r.swapTable(v, strings.TrimSpace(table))
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
		})
	}
	r.waitForSpace()
}

// locate returns an offset in bytes.
func locate(t *testing.T, device, block string) int64 {
	t.Helper()
	f := must.Get(os.Open(device))(t)
	defer f.Close()
	buffer := make([]byte, 4<<20)
	for at := int64(0); ; at += int64(len(buffer)) {
		n, err := f.ReadAt(buffer, at)
		for i := 0; i+len(block) <= n; i += len(block) {
			if string(buffer[i:i+len(block)]) == block {
				return at + int64(i)
			}
		}
		if err != nil {
			t.Fatalf("the block is not on %s: %v", device, err)
		}
	}
}

func TestRealSELinuxContextWithoutSELinuxIsRefused(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		v := r.volume("labelled"+fsType, fsType)
		err := r.stage(v, filesystemAccess(writer, `context="system_u:object_r:container_file_t:s0:c1,c2"`))
		wantError(t, err, codes.Internal, `option context: invalid argument: the kernel says "`)
		r.wantLayers(0)
		r.delete(v)
	}
	r.waitForSpace()
}

func TestRealVolumesAreNeverFormattedByThePlugin(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("a", "ext4")
	r.deleteLater(v)
	overwrite := func(content []byte) {
		t.Helper()
		f := must.Get(os.OpenFile(v.GetDevicePath(), os.O_WRONLY|os.O_SYNC, 0))(r.t)
		must.Get(f.Write(content))(r.t)
		must.Succeed(r.t, f.Close())
	}
	overwrite(make([]byte, 64<<10))
	wantError(t, r.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "no known file system")
	must.Succeed(r.t, filesystem.Format(t.Context(), v.GetDevicePath(), filesystem.FormatOptions{
		Type: filesystem.XFS, UUID: "01234567-89ab-cdef-0123-456789abcdef",
	}))
	wantError(t, r.stage(v, filesystemAccess(writer)), codes.FailedPrecondition, "carries xfs: it was created with ext4")
	r.wantLayers(0)
}

func TestRealStaleDeviceNode(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("a", "ext4")
	r.deleteLater(v)
	// A link to another disk, as a stale name may be.
	must.Succeed(r.t, os.Remove(v.GetDevicePath()))
	must.Succeed(r.t, os.Symlink("/dev/vdc", v.GetDevicePath()))
	must.Succeed(r.t, r.stage(v, filesystemAccess(writer)))
	r.wantAt(r.staging(v), mount.State{Mounted: true, Device: deviceOf(v)})
	must.Succeed(r.t, r.unstage(v))
	must.Succeed(r.t, os.Remove(v.GetDevicePath()))
	must.Succeed(r.t, os.Symlink("../mapper/"+dmName(v), v.GetDevicePath()))
}

// TestRealSwappedNumbers removes two volumes' devices under a running lvmd and
// recreates them with their numbers swapped.
func TestRealSwappedNumbers(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.size = 4 * mib
	volumes := []*lvmdv1.Volume{r.volume("a", ""), r.volume("b", "")}
	for _, v := range volumes {
		f, err := os.OpenFile(v.GetDevicePath(), os.O_WRONLY|os.O_SYNC, 0)
		must.Succeed(r.t, err)
		_, err = f.WriteString(v.GetId())
		must.Succeed(r.t, errors.Join(err, f.Close()))
	}
	lvchange := func(v *lvmdv1.Volume, active string) {
		t.Helper()
		drivertest.ByHand(t, "lvm", "lvchange", "--activate", active, v.GetVgName()+"/"+v.GetId(), "--config", drivertest.HandConfig)
	}
	lvchange(volumes[0], "n")
	lvchange(volumes[1], "n")
	lvchange(volumes[1], "y")
	lvchange(volumes[0], "y")
	for i, v := range volumes {
		other := volumes[1-i]
		if now, err := r.machine.Mounts.Node(v.GetDevicePath()); err != nil || now != deviceOf(other) {
			t.Fatalf("%s is %v, error %v, want %v: they were not swapped", v.GetId(), now, err, deviceOf(other))
		}
		// Until lvmd notices, publishing fails; it never shows the other
		// volume.
		waittest.Succeeds(t, "the volume is published", func() error { return r.publish(v, "pod", access(v), false) })
		content := make([]byte, len(v.GetId()))
		f, err := os.Open(r.target(v, "pod"))
		must.Succeed(r.t, err)
		_, err = io.ReadFull(f, content)
		must.Succeed(r.t, errors.Join(err, f.Close()))
		if string(content) != v.GetId() {
			t.Errorf("volume %s was published with what is on %s", v.GetId(), content)
		}
		must.Succeed(r.t, r.unpublish(v, "pod"))
	}
	for _, v := range volumes {
		r.delete(v)
	}
	r.waitForSpace()
}

// TestRealErrorsAreForgottenWhenRepaired checks that a past error does not make
// a volume useless for ever.
func TestRealErrorsAreForgottenWhenRepaired(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("a", "ext4")
	r.deleteLater(v)
	access := filesystemAccess(multi)
	must.Succeed(r.t, r.stage(v, access))
	must.Succeed(r.t, r.publish(v, "one", access, false))
	r.write(filepath.Join(r.target(v, "one"), "kept"), "content")
	trigger := fmt.Sprintf("/sys/fs/ext4/dm-%d/trigger_fs_error", v.GetDeviceMinor())
	must.Succeed(r.t, os.WriteFile(trigger, []byte("1"), 0))
	if found, err := r.machine.Mounts.Errors(deviceOf(v)); err != nil || found != 1 {
		t.Fatalf("got %d, %v", found, err)
	}
	if err := os.WriteFile(filepath.Join(r.target(v, "one"), "lost"), nil, 0o600); !isErrno(err, syscall.EROFS) {
		t.Errorf("a damaged file system takes writes: %v", err)
	}
	wantError(t, r.publish(v, "two", access, false), codes.FailedPrecondition, "errors in it; it can be repaired when it is no longer in use at "+r.target(v, "one"))
	must.Succeed(r.t, r.unpublish(v, "one"))
	must.Succeed(r.t, r.publish(v, "two", access, false))
	r.wantFile(filepath.Join(r.target(v, "two"), "kept"), "content")
	r.write(filepath.Join(r.target(v, "two"), "new"), "content")
	must.Succeed(r.t, r.unpublish(v, "two"))
	must.Succeed(r.t, r.unstage(v))
}
