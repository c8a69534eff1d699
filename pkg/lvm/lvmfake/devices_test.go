package lvmfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
)

func TestTheFakeMakesGroups(t *testing.T) {
	lvmtest.RunDevices(t, func(*testing.T) lvmtest.DeviceEnv {
		f := lvmfake.New()
		f.AddDisk(lvm.BlockDevice{Name: "vdb", Size: 256 << 20})
		f.AddDisk(lvm.BlockDevice{Name: "vdc", Size: 256 << 20})
		return lvmtest.DeviceEnv{
			Groups: f, Devices: f, First: "/dev/vdb", Second: "/dev/vdc", Group: "made",
			Mark: func(string) { f.MarkDisk("vdb", "ext4") },
		}
	})
}
