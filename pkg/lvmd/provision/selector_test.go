package provision

import (
	"testing"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
)

func TestASelectorNeedsAllOfItsConditions(t *testing.T) {
	yes, no := true, false
	nvme := blockdev.Device{
		Name: "nvme1n1", Path: "/dev/nvme1n1", Size: 100 << 30,
		Model: "Amazon EC2 NVMe Instance Storage", IDs: []string{"nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1", "nvme-eui.01"},
	}
	hdd := blockdev.Device{Name: "sda", Path: "/dev/sda", Size: 4 << 40, Features: blockdev.Features{Rotational: true}, Model: "ST4000NM0035-1V4", IDs: []string{"wwn-0x5000c5"}}
	mapped := blockdev.Device{Name: "dm-3", Path: "/dev/dm-3", Size: 1 << 40, Features: blockdev.Features{Virtual: true}, Mapping: blockdev.Mapping{Name: "mpatha"}}
	persistent := blockdev.Device{Name: "nvme0n1", Path: "/dev/nvme0n1", Model: "nvme_card-pd", Size: 1 << 30}
	local := blockdev.Device{Name: "nvme0n2", Path: "/dev/nvme0n2", Model: "nvme_card2", Size: 1 << 30}
	azure := blockdev.Device{Name: "nvme0n1", Path: "/dev/nvme0n1", Model: "Microsoft NVMe Direct Disk v2", Size: 1 << 30}
	impostor := blockdev.Device{Name: "sdb", Path: "/dev/sdb", Model: "Amazon EC2 NVMe Instance Storage", Size: 1 << 30}
	for _, c := range []struct {
		name         string
		selector     config.DeviceSelector
		device       blockdev.Device
		wants, exact bool
	}{
		{"a path", config.DeviceSelector{Path: "/dev/sda"}, hdd, true, true},
		{"another path", config.DeviceSelector{Path: "/dev/sdb"}, hdd, false, false},
		{"a pattern for paths", config.DeviceSelector{Path: "/dev/nvme[1-9]n1"}, nvme, true, false},
		{"a pattern that stops at a slash", config.DeviceSelector{Path: "/dev/*/*"}, hdd, false, false},
		{"a path by id", config.DeviceSelector{Path: "/dev/disk/by-id/wwn-0x5000c5"}, hdd, true, true},
		{"a mapping's path", config.DeviceSelector{Path: "/dev/mapper/mpatha"}, mapped, true, true},
		{"an id", config.DeviceSelector{ByID: "nvme-eui.01"}, nvme, true, true},
		{"a pattern for ids", config.DeviceSelector{ByID: "nvme-Amazon*"}, nvme, true, false},
		{"another id", config.DeviceSelector{ByID: "wwn-*"}, nvme, false, false},
		{"a model", config.DeviceSelector{Model: "ST4000*"}, hdd, true, false},
		{"another model", config.DeviceSelector{Model: "WD*"}, hdd, false, false},
		{"a range of sizes", config.DeviceSelector{MinSize: 1 << 40, MaxSize: 4 << 40}, hdd, true, false},
		{"too small", config.DeviceSelector{MinSize: 1 << 40}, nvme, false, false},
		{"too large", config.DeviceSelector{MaxSize: 1 << 40}, hdd, false, false},
		{"it rotates", config.DeviceSelector{Rotational: &yes}, hdd, true, false},
		{"it should not rotate", config.DeviceSelector{Rotational: &no}, hdd, false, false},
		{"Amazon's local disk", config.DeviceSelector{InstanceStore: true}, nvme, true, false},
		{"Google's local disk", config.DeviceSelector{InstanceStore: true}, local, true, false},
		{"Google's persistent disk", config.DeviceSelector{InstanceStore: true}, persistent, false, false},
		{"Microsoft's local disk", config.DeviceSelector{InstanceStore: true}, azure, true, false},
		{"a disk that only says so", config.DeviceSelector{InstanceStore: true}, impostor, false, false},
		{"all of several", config.DeviceSelector{Path: "/dev/nvme*", InstanceStore: true, MinSize: 1 << 30, Rotational: &no}, nvme, true, false},
		{"one of several not", config.DeviceSelector{Path: "/dev/nvme*", InstanceStore: true, MinSize: 1 << 40}, nvme, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, literal := selects(&c.selector, &c.device); got != c.wants || literal != c.exact {
				t.Errorf("selected %v, literally %v; want %v, %v", got, literal, c.wants, c.exact)
			}
		})
	}
}
