//go:build kernel

package lvm_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
	"github.com/carve-csi/carve/pkg/must"
)

const handConfig = "activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { scan_lvs=0 use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }"

func lvmByHand(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command("lvm", append(args, "--config", handConfig)...).CombinedOutput()
	if err != nil {
		t.Fatalf("lvm %v: %v\n%s", args, err, out)
	}
}

func group(t *testing.T, name string) {
	t.Helper()
	lvmByHand(t, "vgcreate", "--yes", name, "/dev/vdb", "/dev/vdc")
	t.Cleanup(func() {
		lvmByHand(t, "vgremove", "--yes", "--force", name)
		lvmByHand(t, "pvremove", "--yes", "/dev/vdb", "/dev/vdc")
	})
}

func host(t *testing.T) *lvm.Host {
	t.Helper()
	return hostOf(t, "lvm")
}

func hostOf(t *testing.T, program string) *lvm.Host {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	return must.Get(lvm.NewHost(&lvm.Runner{Binary: program, Timeout: time.Minute, SystemDir: dir}))(t)
}

func TestTheRealLVMIsAnLVM(t *testing.T) {
	lvmtest.Run(t, func(t *testing.T) lvmtest.Env {
		// The hyphen tests device-mapper's doubling of it.
		const name = "carve-test"
		group(t, name)
		return lvmtest.Env{
			Groups: host(t), Group: name,
			Hold: func(group, volume string) (func(), error) {
				f, err := os.Open("/dev/" + group + "/" + volume)
				return func() { f.Close() }, err
			},
			HoldCrypt: func(_, volume string) (func(), error) {
				f, err := os.Open("/dev/mapper/carve.crypt." + volume)
				return func() { f.Close() }, err
			},
			Deactivate: func() { lvmByHand(t, "vgchange", "--activate", "n", name) },
			MakeSnapshot: func(origin, snapshot string) {
				lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", snapshot, "--extents", "1", name+"/"+origin)
			},
			MakeInconsistent: func(volume string) {
				device := "carve--test-" + volume
				load(t, device, 8192)
				dmsetup(t, "suspend", device)
			},
		}
	})
}
