//go:build kernel

package driver_test

import (
	"flag"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func TestRealNothingStacksOrLeaksWhateverHappens(t *testing.T) {
	// The machine is slow; the fakes have seen the many lives.
	if err := flag.Set("rapid.checks", "8"); err != nil {
		t.Fatal(err)
	}
	r := newReal(t, "/dev/vdb", "disk")
	checkLives(t, &r.kubelet, faults{crash: func(_ *lvmdv1.Volume, path string) { r.shutDown(path) }})
}
