package volumegroup

import (
	"context"
	"errors"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
)

// The component is left of a RAID volume whose lvcreate was killed, and has the volume's tags.
func TestOnlyVolumesAreActivatedAtAStart(t *testing.T) {
	const volume = "cvaaaaaaaaaaaaaaaaaaaaaaaaaa"
	f := newFixture(t, map[string][]string{volume: named("a"), volume + "_rmeta_0": named("a")})
	f.start()
	f.lvm.Deactivate()
	found := must.Get(f.Activate(t.Context(), []string{"carve"}, must.Get(f.Scan(t.Context(), []string{"carve"}))(t)))(t)
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	for name, want := range map[string]bool{volume: true, volume + "_rmeta_0": false} {
		if _, err := f.lvm.Device("carve", name); (err == nil) != want {
			t.Errorf("%s is active: %v, want %v", name, err == nil, want)
		}
	}
}

// The start is stopped during a scan, which is killed as if it took too long.
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
