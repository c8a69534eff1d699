//go:build kernel

package lvm_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
	"github.com/carve-csi/carve/pkg/must"
)

func loopDisk(t *testing.T, dir, name string, size int64) string {
	t.Helper()
	file := filepath.Join(dir, name)
	device := must.Get(blockdev.AttachFile(file, size))(t)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v\n%s", device, err, out)
		}
	})
	return device
}

func TestTheRealLVMMakesGroups(t *testing.T) {
	lvmtest.RunDevices(t, func(t *testing.T) lvmtest.DeviceEnv {
		const name = "carve-made"
		dir := t.TempDir()
		h := host(t)
		e := lvmtest.DeviceEnv{
			Groups: h, Devices: h, Group: name,
			First: loopDisk(t, dir, "one", 256<<20), Second: loopDisk(t, dir, "two", 256<<20),
			Mark: func(device string) {
				if out, err := exec.Command("mkfs.ext4", "-q", "-F", device).CombinedOutput(); err != nil {
					t.Fatalf("mkfs.ext4: %v\n%s", err, out)
				}
			},
		}
		t.Cleanup(func() {
			if found, err := h.Scan(context.Background(), []string{name}); err != nil || len(found) > 0 {
				lvmByHand(t, "vgremove", "--yes", "--force", name)
			}
		})
		return e
	})
}
