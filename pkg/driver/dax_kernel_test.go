//go:build kernel && virtual

package driver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
)

// TestRealDAX proves that mapped files on persistent memory are the memory
// itself: the kernel grants MAP_SYNC for nothing else.
func TestRealDAX(t *testing.T) {
	r := newReal(t, "/dev/pmem0", "pmem")
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("dax"+fsType, fsType)
			if !v.GetDax() {
				t.Fatalf("the volume is not for DAX: %v", v)
			}
			access := filesystemAccess(writer)
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "pod", access, false))
			if _, fs := r.options(r.target(v, "pod")); !slices.Contains(fs, "dax=always") {
				t.Errorf("options %q", fs)
			}
			path := filepath.Join(r.target(v, "pod"), "file")
			f, err := os.Create(path)
			must.Succeed(r.t, err)
			const size = 8 * mib
			must.Succeed(r.t, unix.Fallocate(int(f.Fd()), 0, 0, size))
			var st unix.Statx_t
			must.Succeed(r.t, unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &st))
			if st.Attributes&unix.STATX_ATTR_DAX == 0 {
				t.Error("the file is not DAX")
			}
			mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
			if err != nil {
				t.Fatalf("map with MAP_SYNC: %v", err)
			}
			copy(mapped, "carve")
			must.Succeed(r.t, unix.Munmap(mapped))
			must.Succeed(r.t, f.Close())
			content, err := os.ReadFile(path)
			if err != nil || !bytes.HasPrefix(content, []byte("carve")) {
				t.Errorf("got %.10q, %v", content, err)
			}
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
			r.waitForSpace()
		})
	}
}

func TestRealInlineVolumesOnPersistentMemory(t *testing.T) {
	r := newRealInline(t, "/dev/pmem0", "pmem")
	i := r.inline("pod", "")
	must.Succeed(r.t, r.publishInline(i))
	if _, fs := r.options(r.inlineTarget(i)); !slices.Contains(fs, "dax=always") {
		t.Errorf("options %q", fs)
	}
	must.Succeed(r.t, r.unpublishInline(i))
	r.waitForSpace()
}
