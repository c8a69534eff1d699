package lvmfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
)

func TestTheFakeMakesGroups(t *testing.T) {
	lvmtest.RunDevices(t, func(*testing.T) lvmtest.DeviceEnv {
		f := lvmfake.New()
		f.AddDisk(blockdev.Device{Name: "vdb", Size: 256 << 20})
		f.AddDisk(blockdev.Device{Name: "vdc", Size: 256 << 20})
		return lvmtest.DeviceEnv{
			Groups: f, Devices: f, First: "/dev/vdb", Second: "/dev/vdc", Group: "made",
			Mark: func(string) { f.MarkDisk("vdb", "ext4") },
		}
	})
}
