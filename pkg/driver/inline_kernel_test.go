//go:build kernel

package driver_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/must"
)

func newRealInline(t *testing.T, disk, medium string) *real {
	t.Helper()
	m := drivertest.NewRealMachine(t, disk, medium)
	m.InlineVolumes = true
	return &real{kubelet{Plugin: m.Start(), t: t, machine: m, size: 320 * mib}}
}

func (r *real) freeSpace() int64 {
	r.t.Helper()
	answer := must.Get(r.machine.LVMD.ListClasses(r.ctx(), &lvmdv1.ListClassesRequest{}))(r.t)
	return answer.GetClasses()[0].GetAvailableBytes()
}

func TestRealInlineVolumes(t *testing.T) {
	r := newRealInline(t, "/dev/vdb", "disk")
	all := r.freeSpace()
	for _, fsType := range []string{"", "xfs"} {
		t.Run("type "+fsType, func(t *testing.T) {
			i := r.inline("pod"+fsType, fsType)
			for range 2 {
				must.Succeed(r.t, r.publishInline(i))
			}
			r.wantInline(i)
			r.wantLayers(1)
			if free := r.freeSpace(); free != all-r.size {
				t.Errorf("space for %d bytes, want %d", free, all-r.size)
			}
			file := filepath.Join(r.inlineTarget(i), "file")
			r.write(file, "content")

			// A restart of the plugin, and of the machine.
			r.restart()
			must.Succeed(r.t, r.machine.Mounts.Unmount(r.inlineTarget(i)))
			must.Succeed(r.t, r.publishInline(i))
			r.wantFile(file, "content")

			// An open file keeps the volume.
			open := must.Get(os.Open(file))(r.t)
			wantError(t, r.unpublishInline(i), codes.FailedPrecondition, "busy")
			r.wantInline(i)
			must.Succeed(r.t, open.Close())
			for range 2 {
				must.Succeed(r.t, r.unpublishInline(i))
			}
			r.wantInline()
			r.wantLayers(0)
			r.wantGone(r.inlineTarget(i))
			r.waitForSpace()
		})
	}
	t.Run("scratch, with a key that only the kernel has", func(t *testing.T) {
		i := r.inline("pod-secret", "").with("carve.csi.local/encryption", "ephemeral").with("carve.csi.local/profile", "scratch")
		must.Succeed(r.t, r.publishInline(i))
		if v := r.listed()[0]; v.GetEncryption() != "ephemeral" || v.GetProfile() != "scratch" {
			t.Errorf("volume %v", v)
		}
		r.write(filepath.Join(r.inlineTarget(i), "file"), "content")
		must.Succeed(r.t, r.unpublishInline(i))
		r.wantInline()
		r.waitForSpace()
	})
	t.Run("an encryption that there is not", func(t *testing.T) {
		wantError(t, r.publishInline(r.inline("pod-luks", "").with("carve.csi.local/encryption", "rot13")),
			codes.InvalidArgument, `"rot13" is not allowed for a volume that ends with its Pod: "ephemeral" is`)
		r.wantInline()
	})
	t.Run("more than there is space for", func(t *testing.T) {
		i := r.inline("pod-large", "").with("carve.csi.local/size", "1Ti")
		wantError(t, r.publishInline(i), codes.ResourceExhausted, "")
		r.wantInline()
		r.wantGone(r.inlineTarget(i))
	})
	t.Run("a device class that the node does not have", func(t *testing.T) {
		wantError(t, r.publishInline(r.inline("pod-class", "").with("carve.csi.local/device-class", "fast")),
			codes.InvalidArgument, "this node offers local")
	})
}

// Leftovers of a kubelet that lost its directories, and of a plugin killed
// between creating and mounting.
func TestRealInlineVolumesThatWereForgotten(t *testing.T) {
	r := newRealInline(t, "/dev/vdb", "disk")
	r.machine.MakeDir("pods", "plugin")
	mounted, unmounted, kept := r.inline("pod-a", "").with("carve.csi.local/encryption", "ephemeral"), r.inline("pod-b", ""), r.inline("pod-c", "")
	for _, i := range []inlineVolume{mounted, unmounted, kept} {
		must.Succeed(r.t, r.publishInline(i))
	}
	must.Succeed(r.t, r.machine.Mounts.Unmount(r.inlineTarget(unmounted)))
	r.podGoes("pod-b")
	must.Succeed(r.t, os.Remove(r.beside(r.inlineTarget(mounted))))
	elsewhere := t.TempDir()
	must.Succeed(r.t, unix.Mount(r.inlineTarget(mounted), elsewhere, "", unix.MS_BIND, ""))

	r.restart()
	r.Sweep(r.ctx())
	r.wantLayers(1)
	r.podGoes("pod-a")
	now := time.Now()
	known := r.ReclaimInline(r.ctx(), inline.Abandoned{}, now)
	r.wantInline(mounted, unmounted, kept)
	known = r.ReclaimInline(r.ctx(), known, now.Add(inline.Grace))
	r.wantInline(mounted, kept) // still mounted elsewhere
	must.Succeed(r.t, unix.Unmount(elsewhere, 0))
	known = r.ReclaimInline(r.ctx(), known, now.Add(inline.Grace))
	r.wantInline(kept)
	if len(known) != 0 {
		t.Errorf("known %v", known)
	}
	must.Succeed(r.t, r.unpublishInline(kept))
	r.waitForSpace()
}
