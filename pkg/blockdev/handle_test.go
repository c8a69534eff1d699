package blockdev

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
)

// It closes a handle during an operation and opens another file, which would get a free
// descriptor number.
func TestCloseLeavesDeviceToOperation(t *testing.T) {
	dir := t.TempDir()
	d := &handle{f: must.Get(os.Create(filepath.Join(dir, "device")))(t)}
	var before, during unix.Stat_t
	var other *os.File
	err := d.use(func(fd int) error {
		must.Succeed(t, unix.Fstat(fd, &before))
		must.Succeed(t, d.Close())
		other = must.Get(os.Create(filepath.Join(dir, "other")))(t)
		return unix.Fstat(fd, &during)
	})
	if err != nil || during.Ino != before.Ino {
		t.Errorf("after Close, the operation has inode %d, error %v, want %d", during.Ino, err, before.Ino)
	}
	for name, operation := range map[string]func(off, length int64) error{"Zero": d.Zero, "Overwrite": d.Overwrite, "Discard": d.Discard} {
		if err := operation(0, 4096); err == nil {
			t.Errorf("%s succeeds after Close", name)
		}
	}
	must.Succeed(t, other.Close())
}
