//go:build kernel

package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
)

// BenchmarkRealMounting compares the calls that delay a Pod's start, stage and
// publish, with mounting the same volume once, by mount(8) and by the bare
// system call. It does so with nothing else mounted, with a hundred volumes in
// use, with many other mounts too, and with eight volumes at once. Only the
// ratios count, as the machine is emulated. Unmounting is not measured.
func BenchmarkRealMounting(b *testing.B) {
	r := newReal(b, "/dev/vdb", "disk")
	r.size = 64 * mib
	var volumes []*lvmdv1.Volume
	for i := range 8 {
		v := r.volume(fmt.Sprint("v", i), "ext4")
		r.deleteLater(v)
		volumes = append(volumes, v)
	}
	access := filesystemAccess(writer)
	dir := b.TempDir()
	place := func(i int) string {
		at := filepath.Join(dir, fmt.Sprint(i))
		_ = os.Mkdir(at, 0o700)
		return at
	}
	off := func(i int, _ *lvmdv1.Volume) { must.Succeed(r.t, unix.Unmount(place(i), 0)) }
	ways := []struct {
		name     string
		do, undo func(int, *lvmdv1.Volume)
	}{
		{"command", func(i int, v *lvmdv1.Volume) {
			drivertest.ByHand(b, "mount", "-t", "ext4", v.GetDevicePath(), place(i))
		}, off},
		{"call", func(i int, v *lvmdv1.Volume) {
			must.Succeed(r.t, unix.Mount(v.GetDevicePath(), place(i), "ext4", 0, ""))
		}, off},
		{"ours", func(_ int, v *lvmdv1.Volume) {
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "pod", access, false))
		}, func(_ int, v *lvmdv1.Volume) {
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
		}},
	}
	var volumesAround, mountsAround int
	for _, around := range []struct{ volumes, mounts int }{{}, {volumes: 100}, {mounts: 500}} {
		r.size = 20 * mib
		for i := range around.volumes {
			v, pod := r.volume(fmt.Sprint("other", i), "ext4"), fmt.Sprint("pod", i)
			r.deleteLater(v)
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, pod, access, false))
			b.Cleanup(func() { must.Succeed(r.t, r.unpublish(v, pod)); must.Succeed(r.t, r.unstage(v)) })
			volumesAround++
		}
		for i := range around.mounts {
			at := filepath.Join(dir, fmt.Sprint("other", i))
			must.Succeed(r.t, os.Mkdir(at, 0o700))
			must.Succeed(r.t, unix.Mount("none", at, "tmpfs", 0, ""))
			b.Cleanup(func() { must.Succeed(r.t, unix.Unmount(at, 0)) })
			mountsAround++
		}
		for _, way := range ways {
			b.Run(fmt.Sprintf("volumes=%d/mounts=%d/callers=1/%s", volumesAround, mountsAround, way.name), func(b *testing.B) {
				for b.Loop() {
					way.do(0, volumes[0])
					b.StopTimer()
					way.undo(0, volumes[0])
					b.StartTimer()
				}
			})
			b.Run(fmt.Sprintf("volumes=%d/mounts=%d/callers=8/%s", volumesAround, mountsAround, way.name), func(b *testing.B) {
				for b.Loop() {
					var wg sync.WaitGroup
					for i, v := range volumes {
						wg.Go(func() { way.do(i, v) })
					}
					wg.Wait()
					b.StopTimer()
					for i, v := range volumes {
						way.undo(i, v)
					}
					b.StartTimer()
				}
			})
		}
	}
}
