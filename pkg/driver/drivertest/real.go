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

// Group is the volume group of a real machine.
const Group = "carvedriver"

// Thin is a device class named thin, for NewRealMachine.
const Thin = "name: thin, type: thin, thin: {pool: pool, size: 1Gi}"

// HandConfig configures LVM commands run by hand on a host without udev.
const HandConfig = "activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }"

// Cryptsetup returns the real program, with a key derivation cheap enough for
// an emulated machine.
func Cryptsetup() *luks.Cryptsetup {
	return luks.New("cryptsetup", luks.Cost{MemoryKiB: 32, Rounds: 4})
}

const waitTimeout = time.Minute

// NewRealMachine returns a machine without fakes: kernel, LVM, lvmd and a
// volume group on the disk, which it removes at the end. A test that passes
// must leave no mount and no volume. medium is "disk" or "pmem". classes are
// further device classes in lvmd's configuration syntax, without their group.
// Only one machine can exist at a time.
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
		// Leftovers of a failed test.
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

// waitEmpty waits until the group has only thin pools. lvmd must run until
// then: it acknowledges a deletion once journaled, and the volume gets its tag
// only later.
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

func realLVM(t testing.TB) *lvm.Host {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	return must.Get(lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: waitTimeout, SystemDir: dir}))(t)
}

// removeGroup removes the group, with leftovers of a failed test, after lvmd
// has stopped.
func removeGroup(t testing.TB, disk string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	// A command killed when lvmd stopped may have left links to removed
	// devices. vgcreate would reject the name for them; a scan removes them.
	if _, err := realLVM(t).Scan(ctx, []string{Group}); err != nil {
		t.Errorf("scan the volume group: %v", err)
	}
	ByHand(t, "lvm", "vgremove", "--yes", "--force", "--force", Group, "--config", HandConfig)
	ByHand(t, "lvm", "pvremove", "--yes", disk, "--config", HandConfig)
	if left, err := filepath.Glob("/dev/" + Group + "*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, error %v", left, err)
	}
}

// ByHand runs a program like an administrator.
func ByHand(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
