//go:build kernel

package lvmd_test

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// trim issues FITRIM of linux/fs.h, as fstrim does.
func trim(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	span := struct{ start, length, least uint64 }{length: math.MaxUint64}
	const fitrim = 0xc0185879
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fitrim, uintptr(unsafe.Pointer(&span)))
	if errno != 0 {
		return errno
	}
	return nil
}

func (n *node) poolUse() float64 {
	n.t.Helper()
	text := strings.TrimSpace(lvmByHand(n.t, "lvs", "--noheadings", "-o", "data_percent", n.group+"/carve-pool"))
	use := must.Get(strconv.ParseFloat(text, 64))(n.t)
	return use
}

// mountDiscarding mounts as with mountOptions [discard] in the StorageClass.
func mountDiscarding(t *testing.T, v *lvmdv1.Volume) (dir string, unmount func()) {
	t.Helper()
	dir, unmount = mount(t, v)
	must.Succeed(t, syscall.Mount(v.GetDevicePath(), dir, v.GetFsType(), syscall.MS_REMOUNT, "discard"))
	return dir, unmount
}

func TestDiscardsThatAnEncryptedVolumeLetsThroughReachTheDiskAlsoAfterItGrew(t *testing.T) {
	n := newNode(t)
	p := n.start()
	r := sealed(create("pvc-fs", 24<<20, "ext4"))
	r.EncryptionDiscards = true
	v := p.create(r)
	dir, unmount := mountDiscarding(t, v)
	n.growMounted(t, p, v, dir) // This reloads an identical table.
	if err := trim(dir); err != nil {
		t.Errorf("the kernel refuses to trim: %v", err)
	}
	unmount()
	p.delete(v.GetId())
}

func TestAThinPoolGetsSpaceBackOfEncryptedVolumesThatLetDiscardsThrough(t *testing.T) {
	n := thinNode(t, "overprovisioning: 2, dataThreshold: 100%")
	p := n.start()
	for _, let := range []bool{false, true} {
		r := sealed(create("pvc-"+strconv.FormatBool(let), 24<<20, "ext4"))
		r.EncryptionDiscards = let
		v := p.create(r)
		dir, unmount := mountDiscarding(t, v)
		if err := trim(dir); let && err != nil || !let && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("discards let through: %t; the kernel answers %v", let, err)
		}
		n.freesSpace(t, dir, let)
		unmount()
		p.delete(v.GetId())
	}
}

// Only the file system's own discards may free the deleted file's blocks.
func (n *node) freesSpace(t *testing.T, dir string, let bool) {
	t.Helper()
	must.Succeed(t, os.WriteFile(dir+"/data", make([]byte, 16<<20), 0o600))
	syscall.Sync()
	// 16 of 64 MiB are a quarter.
	full := n.poolUse()
	if full < 25 {
		t.Fatalf("%.2f %% of the pool are in use with the file", full)
	}
	must.Succeed(t, os.Remove(dir+"/data"))
	syscall.Sync()
	if let {
		waittest.Until(t, "the pool has the space back", func() bool { return n.poolUse() < full-20 })
	} else if now := n.poolUse(); now < full {
		t.Errorf("%.2f %% of the pool were in use, now %.2f: something was discarded", full, now)
	}
}
