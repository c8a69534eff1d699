//go:build !kernel

// Ginkgo runs one suite per process: with the kernel that is TestRealSanity's.

package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestSanityOnFakes(t *testing.T) {
	conformance.Run(t, drivertest.NewFakeMachine(t).Machine, conformance.Suite{AccessType: "mount", Bytes: 64 << 20, Classes: []conformance.Class{{Name: "local", Floor: conformance.Cases{Identity: 3, Node: 27}}}})
}
