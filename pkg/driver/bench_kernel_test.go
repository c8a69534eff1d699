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
)

// BenchmarkRealMounting compares what the kubelet waits for, stage and publish
// and the way back, with mount(2) and umount(2) alone of the same volume: with
// nothing else mounted and with many mounts around, and with eight volumes at
// once. Only the ratios mean anything, as the machine is emulated.
func BenchmarkRealMounting(b *testing.B) {
	r := newReal(b, "/dev/vdb", "disk")
	r.size = 64 * mib
	var volumes []*lvmdv1.Volume
	for i := range 8 {
		volumes = append(volumes, r.volume(fmt.Sprint("v", i), "ext4"))
	}
	access := filesystemAccess(writer)
	dir := b.TempDir()
	bare := func(i int, v *lvmdv1.Volume) {
		at := filepath.Join(dir, fmt.Sprint(i))
		_ = os.Mkdir(at, 0o700)
		r.must(unix.Mount(v.GetDevicePath(), at, "ext4", 0, ""))
		r.must(unix.Unmount(at, 0))
	}
	ours := func(_ int, v *lvmdv1.Volume) {
		r.must(r.stage(v, access))
		r.must(r.publish(v, "pod", access, false))
		r.must(r.unpublish(v, "pod"))
		r.must(r.unstage(v))
	}
	ways := []struct {
		name string
		do   func(int, *lvmdv1.Volume)
	}{{"bare", bare}, {"ours", ours}}
	for _, mounts := range []int{0, 500} {
		for i := range mounts {
			at := filepath.Join(dir, fmt.Sprint("other", i))
			r.must(os.Mkdir(at, 0o700))
			r.must(unix.Mount("none", at, "tmpfs", 0, ""))
			b.Cleanup(func() { r.must(unix.Unmount(at, 0)) })
		}
		for _, way := range ways {
			b.Run(fmt.Sprintf("mounts=%d/callers=1/%s", mounts, way.name), func(b *testing.B) {
				for b.Loop() {
					way.do(0, volumes[0])
				}
			})
			b.Run(fmt.Sprintf("mounts=%d/callers=8/%s", mounts, way.name), func(b *testing.B) {
				for b.Loop() {
					var wg sync.WaitGroup
					for i, v := range volumes {
						wg.Go(func() { way.do(i, v) })
					}
					wg.Wait()
				}
			})
		}
	}
}
