//go:build kernel

package drivertest

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Group is the volume group of real machines.
const Group = "carvedriver"

// Thin is a device class named thin, for NewRealMachine.
const Thin = "name: thin, type: thin, thin: {pool: pool, size: 1Gi}"

// HandConfig is what an administrator without udev gives to LVM's commands.
const HandConfig = "activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }"

// Cryptsetup is the real one, with headers that cost an emulated machine little.
func Cryptsetup() *luks.Cryptsetup {
	return luks.New("cryptsetup", luks.Cost{MemoryKiB: 32, Rounds: 4})
}

// waitTimeout bounds LVM's commands and the end of an lvmd: the machine is
// emulated.
const waitTimeout = time.Minute

// NewRealMachine makes a machine where everything is real: the kernel, LVM and
// lvmd, with a volume group on the disk, of which nothing is left at the
// test's end. A test that passed has to leave no mount and no volume. The medium is "disk" or "pmem". Further device classes of the group
// are given in the words of lvmd's configuration, but for the group. There can be
// one machine at a time.
func NewRealMachine(t testing.TB, disk, medium string, classes ...string) *Machine {
	t.Helper()
	ByHand(t, "lvm", "vgcreate", "--yes", "--dataalignment", "2m", Group, disk, "--config", HandConfig)
	t.Cleanup(func() { removeGroup(t, disk) })
	content := fmt.Appendf(nil, `
apiVersion: carve.csi.local/v1
kind: LvmdConfig
deviceClasses:
- {name: local, default: true, volumeGroup: %s, medium: %s, inlinePercent: 100}
`, Group, medium)
	for _, class := range classes {
		content = fmt.Appendf(content, "- {volumeGroup: %s, %s}\n", Group, class)
	}
	c := must.Get(config.Parse("test", content))(t)
	log := &Buffer{}
	service := must.Get(lvmd.New(t.Context(), lvmd.Options{
		Config: c, LVM: realLVM(t), StateDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}))(t)
	service.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := service.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	m := NewMachine(t, service, mount.System{}, driver.SystemFileSystems{}, Cryptsetup())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lvmd:\n%s\nplugin:\n%s", log, m.Log)
		}
		// What a failed test left mounted.
		points, err := m.Mounts.Below(m.KubeletDir)
		if err != nil {
			t.Error(err)
		}
		passed := !t.Failed()
		for _, p := range points {
			if passed {
				t.Errorf("left behind: mount %s", p.Path)
			}
			_ = unix.Unmount(p.Path, unix.MNT_DETACH)
		}
		if !t.Failed() {
			waitEmpty(t)
		}
	})
	return m
}

// waitEmpty waits until the volume group has no volume but thin pools. lvmd acknowledges a deletion when it
// is in its journal, and has to run until it is carried out: before, the volume has no tag of it.
func waitEmpty(t testing.TB) {
	t.Helper()
	waittest.Succeeds(t, "nothing is left in the volume group", func() error {
		left := ByHand(t, "lvm", "lvs", "--noheadings", "--options", "lv_name,lv_tags", "--select", "segtype!=thin-pool", Group, "--config", HandConfig)
		if left = strings.TrimSpace(left); left != "" {
			return fmt.Errorf("left behind: %s", left)
		}
		return nil
	})
}

// realLVM returns the machine's LVM.
func realLVM(t testing.TB) *lvm.Host {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	return must.Get(lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: waitTimeout, SystemDir: dir}))(t)
}

// removeGroup removes the volume group of a machine, whose lvmd has stopped, with what a failed test left in it.
func removeGroup(t testing.TB, disk string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	// A command that was cut off when lvmd stopped may have left links to devices that are gone.
	// The next lvmd drops them when it scans; vgcreate refuses the name for them.
	if _, err := realLVM(t).Scan(ctx, []string{Group}); err != nil {
		t.Errorf("scan the volume group: %v", err)
	}
	ByHand(t, "lvm", "vgremove", "--yes", "--force", "--force", Group, "--config", HandConfig)
	ByHand(t, "lvm", "pvremove", "--yes", disk, "--config", HandConfig)
	if left, err := filepath.Glob("/dev/" + Group + "*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, error %v", left, err)
	}
}

// ByHand runs a program as an administrator would.
func ByHand(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
