package volumegroup

import (
	"context"
	"errors"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
)

// TestAStartThatIsStoppedGoesOnWithoutNoGroup stops the start in a scan, which is killed then as one is that takes too long.
func TestAStartThatIsStoppedGoesOnWithoutNoGroup(t *testing.T) {
	f := newFixture(t, nil)
	f.start()
	for _, scans := range []int{1, 2} {
		ctx, stop := context.WithCancel(t.Context())
		f.lvm.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
			if op != lvmfake.OpScan {
				return nil
			}
			if scans--; scans == 0 {
				stop()
			}
			return &lvm.CommandError{Command: "fullreport", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
		}
		if found, err := f.ScanAtStart(ctx, []string{"carve"}); !errors.Is(err, lvm.ErrTimedOut) || found != nil {
			t.Errorf("stopped in a scan: found %v, error %v", found, err)
		}
	}
}
