//go:build kernel && oldkernel

package filesystem_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

const (
	// olderKernel is the last long-term release before Linux 5.12, the oldest
	// that Carve supports: 5.12 mounts whatever it mounts.
	olderKernel = "5.10."
	olderUUID   = "01234567-89ab-cdef-0123-456789abcdef"
	// pmemDisk is the machine's persistent memory.
	pmemDisk = "/dev/pmem0"
)

// onAnOlderKernel skips the test on other kernels.
func onAnOlderKernel(t *testing.T) {
	t.Helper()
	var name unix.Utsname
	must.Succeed(t, unix.Uname(&name))
	if release := unix.ByteSliceToString(name.Release[:]); !strings.HasPrefix(release, olderKernel) {
		t.Fatalf("the kernel is %s, want %sN", release, olderKernel)
	}
}

// TestAnOlderKernelMountsNewFileSystems makes each kind of file system with
// current tools. On the older kernel it writes, reads after another mount, and
// grows it while mounted.
func TestAnOlderKernelMountsNewFileSystems(t *testing.T) {
	onAnOlderKernel(t)
	for _, use := range usesOfDisks {
		t.Run(strings.TrimSpace(string(use.Type)+" "+string(use.Profile)), func(t *testing.T) {
			olderKernelUses(t, newLoop(t), filesystem.FormatOptions{Type: use.Type, Profile: use.Profile})
		})
	}
	for _, typ := range filesystem.Types() {
		for _, settings := range filesystem.EverySetting(t, typ) {
			t.Run(string(typ)+" with "+string(settings), func(t *testing.T) {
				olderKernelUses(t, newLoop(t), filesystem.FormatOptions{Type: typ, Settings: settings})
			})
		}
	}
}

// TestAnOlderKernelMountsNewFileSystemsForDAX does the same on persistent
// memory, which cannot grow, and checks that files are mapped from it.
func TestAnOlderKernelMountsNewFileSystemsForDAX(t *testing.T) {
	onAnOlderKernel(t)
	for _, typ := range []filesystem.Type{filesystem.Ext4, filesystem.XFS} {
		t.Run(string(typ), func(t *testing.T) {
			olderKernelUses(t, loop{device: pmemDisk}, filesystem.FormatOptions{Type: typ, DAX: true})
		})
	}
}

// TestAnOlderKernelTakesEveryMountOption checks that no allowed option is newer
// than the oldest supported kernel.
func TestAnOlderKernelTakesEveryMountOption(t *testing.T) {
	onAnOlderKernel(t)
	for _, use := range usesOfDisks {
		t.Run(strings.TrimSpace(string(use.Type)+" "+string(use.Profile)), func(t *testing.T) {
			mountWithEveryOption(t, use)
		})
	}
}

// olderKernelUses formats the device and uses the file system like a volume's.
func olderKernelUses(t *testing.T, l loop, o filesystem.FormatOptions) {
	t.Helper()
	o.UUID = olderUUID
	must.Succeed(t, filesystem.Format(t.Context(), l.device, o))
	use := filesystem.Use{Type: o.Type, DAX: o.DAX, Profile: o.Profile}
	options := must.Get(filesystem.MountOptions(use, nil))(t)
	options = append(use.JournalOptions(must.Get(filesystem.Probe(l.device))(t)), options...)
	if o.Type == filesystem.XFS {
		options = append(options, "nouuid") // as the node plugin does
	}
	dir, system := t.TempDir(), mount.System{}
	t.Cleanup(func() { must.Succeed(t, system.Unmount(dir)) })
	file, content := filepath.Join(dir, "file"), bytes.Repeat([]byte("carve!\n"), 100_000)

	must.Succeed(t, system.Mount(mount.Source{Node: l.device}, dir, string(o.Type), options))
	must.Succeed(t, os.WriteFile(file, content, 0o600))
	if o.DAX {
		checkDAX(t, file)
	}
	must.Succeed(t, system.Unmount(dir))
	if info, err := filesystem.Probe(l.device); err != nil || info.Type != o.Type || info.UUID != olderUUID || info.NeedsCheck {
		t.Errorf("after it was unmounted: %+v, %v", info, err)
	}

	must.Succeed(t, system.Mount(mount.Source{Node: l.device}, dir, string(o.Type), options))
	if l.image != "" {
		before := must.Get(system.Usage(dir))(t).TotalBytes
		l.grow(t)
		must.Succeed(t, filesystem.Grow(t.Context(), l.device, dir, o.Type))
		if after := must.Get(system.Usage(dir))(t).TotalBytes; after < before+loopGrowth/2 {
			t.Errorf("it has %d bytes after it was grown by %d, before it had %d", after, loopGrowth, before)
		}
	}
	if got := must.Get(os.ReadFile(file))(t); !bytes.Equal(got, content) {
		t.Errorf("a file of %d bytes was written, and other %d bytes are read", len(content), len(got))
	}
	must.Succeed(t, system.Unmount(dir))
}

// checkDAX asks the kernel whether it accesses the file directly.
func checkDAX(t *testing.T, file string) {
	t.Helper()
	var stat unix.Statx_t
	must.Succeed(t, unix.Statx(unix.AT_FDCWD, file, 0, unix.STATX_BASIC_STATS, &stat))
	if stat.Attributes&unix.STATX_ATTR_DAX == 0 {
		t.Error("the file is not accessed directly in persistent memory")
	}
}

// loop is a loop device on a sparse image. Other devices have no image.
type loop struct{ device, image string }

// loopSize suffices for each type; loopGrowth is the size that grow adds.
const loopSize, loopGrowth = 512 << 20, 256 << 20

func newLoop(t *testing.T) loop {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must.Succeed(t, os.WriteFile(image, nil, 0o600))
	must.Succeed(t, os.Truncate(image, loopSize))
	device := command(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { command(t, "losetup", "--detach", device) })
	return loop{device, image}
}

func (l loop) grow(t *testing.T) {
	t.Helper()
	must.Succeed(t, os.Truncate(l.image, loopSize+loopGrowth))
	command(t, "losetup", "--set-capacity", l.device)
}

func command(t *testing.T, argv ...string) string {
	t.Helper()
	// The test's context is done during cleanup.
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
