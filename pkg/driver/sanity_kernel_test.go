//go:build kernel

package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestRealSanity(t *testing.T) {
	conformance.Run(t, drivertest.NewRealMachine(t, "/dev/vdb", "disk", drivertest.Thin), conformance.Suite{
		AccessType: "mount", Bytes: 64 * mib, Classes: []conformance.Class{
			{Name: "local", Floor: conformance.Cases{Identity: 3, Node: 27}},
			{Name: "thin", Floor: conformance.Cases{Identity: 3, Node: 27}},
		}})
}
