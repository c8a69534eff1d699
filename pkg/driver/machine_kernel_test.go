//go:build kernel

package driver_test

import (
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/rapidtest"
)

func TestRealNothingStacksOrLeaksWhateverHappens(t *testing.T) {
	// The machine is slow; the fakes have seen the many lives.
	rapidtest.Set(t, map[string]string{"checks": "8"})
	r := newReal(t, "/dev/vdb", "disk")
	checkLives(t, &r.kubelet, faults{crash: func(_ *lvmdv1.Volume, path string) { r.shutDown(path) }})
}
