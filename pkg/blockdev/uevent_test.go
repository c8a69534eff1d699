package blockdev

import (
	"strings"
	"testing"
)

func TestOnlyBlockDevicesThatAreNoVolumesWake(t *testing.T) {
	event := func(s ...string) []byte { return []byte(strings.Join(s, "\x00") + "\x00") }
	for _, c := range []struct {
		event []byte
		want  bool
	}{
		{event("add@/devices/pci/block/sdb", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=sdb"), true},
		{event("change@/devices/virtual/block/loop0", "ACTION=change", "SUBSYSTEM=block", "DEVNAME=loop0"), true},
		{event("add@/devices/virtual/block/dm-3", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=dm-3"), false},
		{event("change@/devices/virtual/block/dm-4", "ACTION=change", "SUBSYSTEM=block", "DEVNAME=dm-4"), true},
		{event("add@/devices/net/eth0", "ACTION=add", "SUBSYSTEM=net"), false},
		{nil, false},
	} {
		isVolume := func(device string) bool { return device == "dm-3" }
		if got := concernsBlockDevice(c.event, isVolume); got != c.want {
			t.Errorf("%q: %v", c.event, got)
		}
	}
}
