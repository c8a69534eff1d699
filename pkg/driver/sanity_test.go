//go:build !kernel

// Ginkgo runs one suite in a process: with the kernel it is that of TestRealSanity.

package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestSanityOnFakes(t *testing.T) {
	m := drivertest.NewFakeMachine(t)
	conformance.Run(t, m.Machine, "mount", 64<<20)
	if points, err := m.Mounts.Below(m.KubeletDir); err != nil || len(points) != 0 {
		t.Errorf("mounts are left: %v, %v", points, err)
	}
}
