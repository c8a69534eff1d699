package luksfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/luks/luksfake"
	"github.com/carve-csi/carve/pkg/luks/lukstest"
)

func TestFake(t *testing.T) {
	const device = "/dev/carve/cvabcdefghijklmnopqrstuvwxyz"
	below, shown, held := int64(32<<20), int64(0), false
	table := &luksfake.Table{
		Opened: func(string, string, luks.Mapping) { shown = below - luks.HeaderBytes },
		InUse:  func(luks.Mapping) bool { return held },
	}
	lukstest.Run(t, lukstest.Harness{
		Interface: table, Device: device,
		Hold: func(*testing.T, string) func() {
			held = true
			return func() { held = false }
		},
		Grow:      func(_ *testing.T, more int64) { below += more },
		Size:      func(*testing.T, string) int64 { return shown },
		Interrupt: func(_ *testing.T, volume string) { table.Interrupt(device, volume) },
		Fail:      func(*testing.T) func() { return func() {} },
	})
}
