//go:build kernel

package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestRealSanity(t *testing.T) {
	conformance.Run(t, drivertest.NewRealMachine(t, "/dev/vdb", "disk", drivertest.Thin), conformance.Suite{
		AccessType: "mount", Bytes: 64 * mib, Shipped: true, Classes: []conformance.Class{
			{Name: "local", Floor: conformance.Cases{Identity: 3, Node: 27}},
			{Name: "thin", Controller: true, Floor: conformance.Cases{Identity: 3, Node: 27, Controller: 52}},
		}})
}
