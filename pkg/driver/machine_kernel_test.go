//go:build kernel

package driver_test

import (
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/rapidtest"
)

func TestRealNothingStacksOrLeaksWhateverHappens(t *testing.T) {
	// The machine is slow; the fakes get many more runs.
	rapidtest.Set(t, map[string]string{"checks": "8"})
	r := newReal(t, "/dev/vdb", "disk")
	checkRandomly(t, &r.kubelet, faults{crash: r.crash})
}

func (r *real) crash(_ *lvmdv1.Volume, path string) { r.shutDown(path) }

func TestARealFailedVolumeIsNotStagedBesideAPodThatHasIt(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	checkStageBesideAFailedMount(t, &r.kubelet, r.crash)
}
