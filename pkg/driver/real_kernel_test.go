//go:build kernel

package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
)

const (
	mib = 1 << 20
	// group is the volume group that tests make.
	group = "carvedriver"
	// patience bounds waits: the machine is emulated.
	patience = time.Minute
)

// real is a kubelet on a machine where everything is real: the kernel, LVM and
// lvmd.
type real struct{ kubelet }

// newReal makes a volume group on the disk and starts an lvmd and a plugin.
// The medium is "disk" or "pmem".
func newReal(t testing.TB, disk, medium string) *real {
	t.Helper()
	byHand(t, "lvm", "vgcreate", "--yes", "--dataalignment", "2m", group, disk, "--config", handConfig)
	t.Cleanup(func() {
		byHand(t, "lvm", "vgremove", "--yes", "--force", "--force", group, "--config", handConfig)
		byHand(t, "lvm", "pvremove", "--yes", disk, "--config", handConfig)
	})
	c, err := config.Parse("test", fmt.Appendf(nil, `
apiVersion: carve.csi.local/v1
kind: LvmdConfig
deviceClasses:
- {name: local, default: true, volumeGroup: %s, medium: %s}
`, group, medium))
	if err != nil {
		t.Fatal(err)
	}
	log := &drivertest.Buffer{}
	service, err := lvmd.New(t.Context(), lvmd.Options{
		Config: c, LVM: lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: patience}), StateDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	service.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := service.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	m := drivertest.NewMachine(t, service, mount.System{}, driver.SystemFileSystems{})
	r := &real{kubelet{Plugin: m.Start(), t: t, machine: m, size: 320 * mib}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lvmd:\n%s\nplugin:\n%s", log, m.Log)
		}
		// What a failed test left mounted.
		points, err := r.machine.Mounts.Below(m.KubeletDir)
		if err != nil {
			t.Error(err)
		}
		for _, p := range points {
			_ = unix.Unmount(p.Path, unix.MNT_DETACH)
		}
	})
	return r
}

const handConfig = "activation { udev_sync=0 udev_rules=0 } devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }"

// byHand runs a program as an administrator would.
func byHand(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// shutDown makes the file system at a path forget what it has not written,
// and fail from then on: as near to a power cut as a kernel gets that goes on
// running.
func (r *real) shutDown(path string) {
	r.t.Helper()
	const (
		fsIOCShutdown = 0x8004587d // _IOR('X', 125, __u32)
		noLogFlush    = 2
	)
	f, err := os.Open(path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), fsIOCShutdown, noLogFlush); err != nil {
		r.t.Fatalf("shut down %s: %v", path, err)
	}
}

// swapTable gives the volume's device another device-mapper table and returns
// the one it had, without letting anything be written in between.
func (r *real) swapTable(v *lvmdv1.Volume, table string) (before string) {
	r.t.Helper()
	name := dmName(v)
	before = byHand(r.t, "dmsetup", "table", name)
	byHand(r.t, "dmsetup", "reload", name, "--table", table)
	byHand(r.t, "dmsetup", "suspend", "--noflush", "--nolockfs", name)
	byHand(r.t, "dmsetup", "resume", name, "--noudevsync")
	return before
}

// kill makes every access to the volume's device fail until revive is called.
func (r *real) kill(v *lvmdv1.Volume) (revive func()) {
	r.t.Helper()
	sectors := v.GetSizeBytes() / 512
	before := r.swapTable(v, fmt.Sprintf("0 %d error", sectors))
	return func() { r.swapTable(v, strings.TrimSpace(before)) }
}

func dmName(v *lvmdv1.Volume) string { return v.GetVgName() + "-" + v.GetId() }

// write writes a file and makes sure that it is on the disk.
func (r *real) write(path, content string) {
	r.t.Helper()
	f, err := os.Create(path)
	if err == nil {
		_, err = f.WriteString(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *real) wantFile(path, content string) {
	r.t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		r.t.Errorf("%s: got %q, %v, want %q", filepath.Base(path), got, err, content)
	}
}

// options returns those of the topmost layer at a path and its file system.
func (r *real) options(path string) (layer, fileSystem []string) {
	r.t.Helper()
	points, err := r.machine.Mounts.Below(r.machine.KubeletDir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range points {
		if p.Path == path {
			return p.Options, p.FSOptions
		}
	}
	r.t.Fatalf("nothing is mounted at %s", path)
	return nil, nil
}

func (r *real) delete(v *lvmdv1.Volume) {
	r.t.Helper()
	if _, err := r.machine.LVMD.DeleteVolume(r.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err != nil {
		r.t.Error(err)
	}
}

// waitForRoom waits until deleted volumes are wiped and gone.
func (r *real) waitForRoom() {
	r.t.Helper()
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(200 * time.Millisecond) {
		if strings.TrimSpace(byHand(r.t, "lvm", "lvs", "--noheadings", group, "--config", handConfig)) == "" {
			return
		}
	}
	r.t.Fatal("deleted volumes are still there")
}

// isErrno tells whether an error is that of the system.
func isErrno(err error, want syscall.Errno) bool { return errors.Is(err, want) }
