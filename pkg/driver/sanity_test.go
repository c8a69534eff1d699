package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestSanityOnFakes(t *testing.T) {
	m := drivertest.NewMachine(t)
	table, _ := m.Fake()
	conformance.Run(t, m, m.LVMD, "mount", 64<<20)
	if n := table.Layers(); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}
