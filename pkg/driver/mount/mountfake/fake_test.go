package mountfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/driver/mount/mounttest"
)

func TestFake(t *testing.T) {
	table := &mountfake.Table{}
	device := mount.Device{Major: 253, Minor: 7}
	table.AddNode("/dev/carve/cv1", device, 1<<30)
	mounttest.Run(t, mounttest.Harness{
		Interface: table, Node: "/dev/carve/cv1", FSType: "ext4", Device: device, Size: 1 << 30,
		Busy: func(_ *testing.T, path string) func() {
			table.SetBusy(path, true)
			return func() { table.SetBusy(path, false) }
		},
		Freeze: func(*testing.T, string) { table.Freeze(device) },
	})
}
