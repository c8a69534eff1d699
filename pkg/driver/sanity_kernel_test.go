//go:build kernel

package driver_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

func TestRealSanity(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	r.Stop(t)
	conformance.Run(t, r.machine, "mount", 64*mib)
	r.wantLayers(0)
}
