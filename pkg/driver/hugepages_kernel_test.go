//go:build kernel && virtual

package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
)

const hugePage = 2 * mib

// daxFaults traces how the kernel handles page faults on directly mapped files:
// with a huge page or with small ones.
type daxFaults struct {
	t        *testing.T
	instance string
}

func watchDAXFaults(t *testing.T) *daxFaults {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, unix.Mount("tracefs", dir, "tracefs", 0, ""))
	w := &daxFaults{t: t, instance: filepath.Join(dir, "instances", "carve")}
	t.Cleanup(func() {
		for _, err := range []error{os.Remove(w.instance), unix.Unmount(dir, 0)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	must.Succeed(t, os.Mkdir(w.instance, 0o700))
	must.Succeed(t, os.WriteFile(filepath.Join(w.instance, "events/fs_dax/dax_pmd_fault_done/enable"), []byte("1"), 0))
	return w
}

func (w *daxFaults) of(path string) (huge, small int) {
	w.t.Helper()
	var st unix.Stat_t
	must.Succeed(w.t, unix.Stat(path, &st))
	trace := must.Get(os.ReadFile(filepath.Join(w.instance, "trace")))(w.t)
	file := fmt.Sprintf("dev %d:%d ino %#x ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(trace)) {
		switch {
		case !strings.Contains(line, file):
		case strings.Contains(line, "FALLBACK"):
			small++
		default:
			huge++
		}
	}
	return huge, small
}

// touch writes to every small page and returns the number of page faults.
func touch(t *testing.T, mapped []byte) int64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Rusage
	must.Succeed(t, unix.Getrusage(unix.RUSAGE_THREAD, &before))
	for at := 0; at < len(mapped); at += os.Getpagesize() {
		mapped[at] = 1
	}
	must.Succeed(t, unix.Getrusage(unix.RUSAGE_THREAD, &after))
	return after.Minflt + after.Majflt - before.Minflt - before.Majflt
}

// TestRealHugePages checks that directly mapped files on persistent memory get
// huge pages, even among other files and after some were deleted.
func TestRealHugePages(t *testing.T) {
	r := newReal(t, "/dev/pmem0", "pmem")
	faults := watchDAXFaults(t)
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("huge"+fsType, fsType)
			access := filesystemAccess(writer)
			must.Succeed(r.t, r.stage(v, access))
			must.Succeed(r.t, r.publish(v, "pod", access, false))
			dir := r.target(v, "pod")
			for n := range 8 {
				r.write(filepath.Join(dir, fmt.Sprint("small", n)), strings.Repeat("x", 5000))
			}
			must.Succeed(r.t, os.Remove(filepath.Join(dir, "small3")))
			for _, file := range []struct {
				name     string
				reserved bool
			}{{"reserved", true}, {"sparse", false}, {"reserved-too", true}} {
				path := filepath.Join(dir, file.name)
				f := must.Get(os.Create(path))(r.t)
				const size = 4 * hugePage
				if file.reserved {
					must.Succeed(r.t, unix.Fallocate(int(f.Fd()), 0, 0, size))
				} else {
					must.Succeed(r.t, f.Truncate(size))
				}
				mapped := must.Get(unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(r.t)
				took := touch(t, mapped)
				huge, small := faults.of(path)
				t.Logf("%s: %d page faults for %d small pages, %d with a huge page, %d without", file.name, took, size/os.Getpagesize(), huge, small)
				// Allow a few faults of the Go runtime.
				if huge != size/hugePage || small != 0 || took > size/hugePage+100 {
					t.Errorf("%s: want %d page faults, each with a huge page", file.name, size/hugePage)
				}
				must.Succeed(r.t, unix.Munmap(mapped))
				must.Succeed(r.t, f.Close())
			}
			must.Succeed(r.t, r.unpublish(v, "pod"))
			must.Succeed(r.t, r.unstage(v))
			r.delete(v)
			r.waitForSpace()
		})
	}
}
