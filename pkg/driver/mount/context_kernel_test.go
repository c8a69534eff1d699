//go:build kernel

package mount_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestTheKernelsOwnWordsAreInTheError(t *testing.T) {
	device, _ := formatDisk(t, filesystem.Ext4)
	dir, system := t.TempDir(), mount.System{}
	for option, words := range map[string]string{
		"no-such-option": `option no-such-option: invalid argument: the kernel says "ext4: Unknown parameter 'no-such-option'"`,
		"commit=soon":    `option commit: invalid argument: the kernel says "ext4: Bad value for 'commit'"`,
	} {
		err := system.Mount(mount.Source{Node: disk}, dir, "ext4", []string{"noatime", option})
		var refused *mount.KernelError
		if !errors.As(err, &refused) || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v, want %s", option, err, words)
		}
		wantNothing(t, dir, device)
	}
}

func TestLaterOptionsWin(t *testing.T) {
	formatDisk(t, filesystem.Ext4)
	system := mount.System{}
	for _, tt := range []struct{ given, want, not []string }{
		{given: []string{"noatime", "nosuid", "relatime", "suid"}, want: []string{"relatime"}, not: []string{"noatime", "nosuid"}},
		{given: []string{"relatime", "suid", "noatime", "nosuid"}, want: []string{"noatime", "nosuid"}, not: []string{"relatime"}},
		{given: []string{"noatime", "strictatime", "ro", "rw"}, want: []string{"rw"}, not: []string{"noatime", "relatime", "ro"}},
		{given: []string{"nobarrier", "barrier=1", "commit=5", "commit=30"}, want: []string{"rw"}},
	} {
		dir := filepath.Join(t.TempDir(), "at")
		must.Succeed(t, os.Mkdir(dir, 0o700))
		must.Succeed(t, system.Mount(mount.Source{Node: disk}, dir, "ext4", tt.given))
		points := must.Get(system.Below(filepath.Dir(dir)))(t)
		for _, o := range tt.want {
			if !slices.Contains(points[0].Options, o) {
				t.Errorf("%q: %s is missing in %q", tt.given, o, points[0].Options)
			}
		}
		for _, o := range tt.not {
			if slices.Contains(points[0].Options, o) {
				t.Errorf("%q: %s is in %q", tt.given, o, points[0].Options)
			}
		}
		if fs := points[0].FSOptions; slices.Contains(fs, "nobarrier") || slices.Contains(tt.given, "commit=30") && !slices.Contains(fs, "commit=30") {
			t.Errorf("%q: the file system has %q", tt.given, fs)
		}
		must.Succeed(t, system.Unmount(dir))
	}
}

func TestAValueThatTheKernelCannotTakeIsNamed(t *testing.T) {
	device, _ := formatDisk(t, filesystem.Ext4)
	dir := t.TempDir()
	err := mount.System{}.Mount(mount.Source{Node: disk}, dir, "ext4", []string{"context=" + strings.Repeat("c", 256)})
	if !errors.Is(err, syscall.ENAMETOOLONG) || !strings.Contains(err.Error(), "option context: the value has 256 bytes, allowed are 255") {
		t.Errorf("got %v", err)
	}
	wantNothing(t, dir, device)
}

// The node stands for another device than requested.
func TestAMountThatIsNotWhatWasAskedForIsNeverSeen(t *testing.T) {
	for _, fsType := range []filesystem.Type{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs} {
		t.Run(string(fsType), func(t *testing.T) {
			device, _ := formatDisk(t, fsType)
			dir, system := t.TempDir(), mount.System{}
			other := mount.Device{Major: device.Major, Minor: device.Minor + 1}
			if err := system.Mount(mount.Source{Node: disk, Device: other}, dir, string(fsType), nil); !errors.Is(err, mount.ErrUnverified) {
				t.Errorf("got %v", err)
			}
			wantNothing(t, dir, device)
			must.Succeed(t, system.Mount(mount.Source{Node: disk, Device: device}, dir, string(fsType), nil))
			must.Succeed(t, system.Unmount(dir))
		})
	}
}

// asMounter makes the test program only mount the disk at the path in this
// variable.
const asMounter = "CARVE_TEST_MOUNT_AT"

// TestMounter is the process that TestAMountThatIsKilledLeavesNothing kills.
func TestMounter(t *testing.T) {
	// strace counts the calls of each thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := os.Getenv(asMounter)
	if path == "" {
		path = t.TempDir()
		formatDisk(t, filesystem.Ext4)
		defer func() { must.Succeed(t, mount.System{}.Unmount(path)) }()
	}
	must.Succeed(t, mount.System{}.Mount(mount.Source{Node: disk}, path, "ext4", []string{"noatime", "commit=30"}))
}

// TestAMountThatIsKilledLeavesNothing kills a mounting process before each of
// its system calls.
func TestAMountThatIsKilledLeavesNothing(t *testing.T) {
	device, _ := formatDisk(t, filesystem.Ext4)
	program := must.Get(os.Executable())(t)
	var killed []string
	for _, call := range []string{"fsopen", "fsconfig", "fsmount", "move_mount"} {
		for number := 1; ; number++ {
			dir := t.TempDir()
			cmd := exec.Command("strace", "-f", "-o", filepath.Join(t.TempDir(), "trace"), "-e", "trace="+call,
				"-e", "inject="+call+":error=EINTR:signal=KILL:when="+strconv.Itoa(number), program, "-test.run", "^TestMounter$")
			cmd.Env = append(os.Environ(), asMounter+"="+dir)
			out, err := cmd.CombinedOutput()
			if err == nil {
				// It makes fewer such calls.
				if at, err := (mount.System{}).At(dir); err != nil || at.Device != device {
					t.Errorf("not killed, it left %+v, %v", at, err)
				}
				must.Succeed(t, mount.System{}.Unmount(dir))
				break
			}
			if !strings.Contains(err.Error(), "killed") {
				t.Fatalf("before %s %d: %v\n%s", call, number, err, out)
			}
			killed = append(killed, call+strconv.Itoa(number))
			wantNothing(t, dir, device)
		}
	}
	// noatime is an attribute of the layer, so fsconfig gets only the device,
	// commit and the final create.
	if want := []string{"fsopen1", "fsconfig1", "fsconfig2", "fsconfig3", "fsmount1", "move_mount1"}; !slices.Equal(killed, want) {
		t.Errorf("it was killed before %q, want %q", killed, want)
	}
	dir := t.TempDir()
	must.Succeed(t, mount.System{}.Mount(mount.Source{Node: disk}, dir, "ext4", nil))
	must.Succeed(t, mount.System{}.Unmount(dir))
}

// wantNothing waits, as the kernel closes the descriptors of a killed process a
// little later.
func wantNothing(t *testing.T, dir string, device mount.Device) {
	t.Helper()
	if at, err := (mount.System{}).At(dir); err != nil || at.Mounted {
		t.Errorf("at the directory: %+v, %v", at, err)
	}
	waittest.Until(t, "the kernel has the file system mounted no more", func() bool {
		f, err := os.OpenFile(disk, os.O_RDWR|unix.O_EXCL, 0)
		if err == nil {
			f.Close()
		}
		inUse, inUseErr := mount.System{}.InUse(device)
		return err == nil && !inUse && inUseErr == nil
	})
}
