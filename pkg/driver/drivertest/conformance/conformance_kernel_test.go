//go:build kernel

package conformance_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/drivertest/conformance"
)

// TestSanityOfBlock is apart from its counterpart for file systems, in package
// driver, because Ginkgo runs one suite in a process.
func TestSanityOfBlock(t *testing.T) {
	conformance.Run(t, drivertest.NewRealMachine(t, "/dev/vdb", "disk", drivertest.Thin), conformance.Suite{
		AccessType: "block", Bytes: 64 << 20, Classes: []conformance.Class{
			{Name: "local", Floor: conformance.Cases{Identity: 3, Node: 27}},
			{Name: "thin", Floor: conformance.Cases{Identity: 3, Node: 27}},
		}})
}
