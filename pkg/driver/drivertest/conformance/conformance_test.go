//go:build !kernel

package conformance_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

// TestSanityOfBlockOnFakes is apart from its counterpart for file systems, in
// package driver, because Ginkgo runs one suite in a process.
func TestSanityOfBlockOnFakes(t *testing.T) {
	conformance.Run(t, drivertest.NewFakeMachine(t).Machine, "block", 64<<20, "local")
}
