//go:build kernel

package blockdev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
)

func loopDisk(t *testing.T, dir, name string, size int64) string {
	t.Helper()
	file := filepath.Join(dir, name)
	device := must.Get(AttachFile(file, size))(t)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v\n%s", device, err, out)
		}
	})
	return device
}

func TestAFileIsAttachedOnceAndAllOfItAllocated(t *testing.T) {
	dir := t.TempDir()
	first := loopDisk(t, dir, "file", 64<<20)
	for range 2 {
		again, err := AttachFile(filepath.Join(dir, "file"), 64<<20)
		if err != nil || again != first {
			t.Fatalf("attached to %s, and then to %s, error %v", first, again, err)
		}
	}
	blocks := func() string {
		out := must.Get(exec.Command("stat", "--format=%b %s", filepath.Join(dir, "file")).Output())(t)
		return string(out)
	}
	if got := blocks(); got != "131072 67108864\n" {
		t.Errorf("blocks and size: %s", got)
	}
	// It fills a hole and notices growth.
	if out, err := exec.Command("fallocate", "--punch-hole", "--offset=1048576", "--length=8388608", filepath.Join(dir, "file")).CombinedOutput(); err != nil {
		t.Fatalf("fallocate: %v\n%s", err, out)
	}
	must.Get(AttachFile(filepath.Join(dir, "file"), 96<<20))(t)
	if got := blocks(); got != "196608 100663296\n" {
		t.Errorf("blocks and size: %s", got)
	}
	all := must.Get(List("/"))(t)
	for _, d := range all {
		if d.Path == first && (d.Size != 96<<20 || !d.Virtual) {
			t.Errorf("device %+v", d)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, error %v", entries, err)
	}
}

// An overlay claims support of direct I/O, whatever lies below it.
func TestALoopFileOnAnOverlayCanBeRead(t *testing.T) {
	dir := t.TempDir()
	below, merged := filepath.Join(dir, "below"), filepath.Join(dir, "merged")
	for _, path := range []string{below, merged} {
		must.Succeed(t, os.Mkdir(path, 0o700))
	}
	must.Succeed(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(below, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	lower, upper, work := filepath.Join(below, "lower"), filepath.Join(below, "upper"), filepath.Join(below, "work")
	for _, path := range []string{lower, upper, work} {
		must.Succeed(t, os.Mkdir(path, 0o700))
	}
	must.Succeed(t, unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work))
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	f := must.Get(os.Open(loopDisk(t, merged, "file", 64<<20)))(t)
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, 4096), 32<<20); err != nil {
		t.Error(err)
	}
}

// A signal makes fallocate on tmpfs undo its work. Go's runtime sends itself such signals,
// which once made a loop file fail.
func TestALoopFileIsMadeWhateverSignalsCome(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var sender sync.WaitGroup
	sender.Go(func() {
		for ctx.Err() == nil {
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, task := range tasks {
				thread, _ := strconv.Atoi(task.Name())
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // The thread may have ended.
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	defer sender.Wait()
	defer cancel()
	dir := t.TempDir()
	for i := range 4 {
		const size = 64 << 20
		loopDisk(t, dir, fmt.Sprint("disk", i), size)
		var st unix.Stat_t
		must.Succeed(t, unix.Stat(filepath.Join(dir, fmt.Sprint("disk", i)), &st))
		if got := st.Blocks * 512; got < size {
			t.Errorf("the file has blocks for %d bytes, want %d", got, size)
		}
	}
}
