package volumegroup

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestDevicesAreRepairedAfterACommandOfOursFailedAndAtNoOtherTime(t *testing.T) {
	f := newFixture(t, map[string][]string{ours: named("a"), "theirs": nil})
	f.start()
	f.lvm.MakeInconsistent("carve", ours)
	f.lvm.MakeInconsistent("carve", "theirs")
	left := func(want ...string) {
		t.Helper()
		if got := must.Get(f.lvm.Inconsistent("carve"))(t); !slices.Equal(got, want) {
			t.Errorf("inconsistent are %q, want %q", got, want)
		}
	}
	must.Succeed(t, f.Rescan(f.g))
	left(ours, "theirs")
	_ = f.Change(t.Context(), f.g, func(context.Context) (inventory.Effect, error) { return nil, errors.New("killed") })
	left("theirs")
	f.lvm.MakeInconsistent("carve", ours)
	must.Succeed(t, f.Rescan(f.g))
	left("theirs", ours)

	t.Log("a group that is away after the failure is repaired when it is back")
	_ = f.Change(t.Context(), f.g, func(context.Context) (inventory.Effect, error) {
		f.lvm.PlugGroup("carve", false)
		return nil, errors.New("I/O error")
	})
	f.lvm.PlugGroup("carve", true)
	must.Succeed(t, f.Rescan(f.g))
	left("theirs")
}

// unsure is an LVM that fails to compare devices for the given number of times.
type unsure struct {
	*lvmfake.Groups
	times int
}

func (u *unsure) Inconsistent(group string) ([]string, error) {
	if u.times--; u.times >= 0 {
		return nil, errors.New("sysfs: I/O error")
	}
	return u.Groups.Inconsistent(group)
}

func TestAGroupOfWhichNothingIsKnownAfterAFailureIsServedAndLookedAtAgain(t *testing.T) {
	for name, test := range map[string]struct{ times, repairs int }{
		"the first look fails": {times: 1, repairs: 1},
		"all looks fail":       {times: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, map[string][]string{ours: named("a")})
			f.start()
			f.LVM, f.PollInterval = &unsure{f.lvm, test.times}, 0
			f.lvm.MakeInconsistent("carve", ours)
			_ = f.Change(t.Context(), f.g, func(context.Context) (inventory.Effect, error) { return nil, errors.New("killed") })
			if !f.g.Known().Suspect {
				t.Fatal("the devices are taken for consistent, and were not looked at")
			}
			must.Succeed(t, f.Change(t.Context(), f.g, func(ctx context.Context) (inventory.Effect, error) {
				return inventory.Tagged(), f.lvm.Tag(ctx, "carve", []string{ours}, "tag")
			}))
			scans := f.lvm.Commands(lvmfake.OpScan)
			waittest.Until(t, "a probe looks again", func() bool {
				f.Refresh(t.Context(), f.g)
				return f.lvm.Commands(lvmfake.OpScan) > scans
			})
			if n := f.lvm.Commands(lvmfake.OpRepair); n != test.repairs || f.g.Known().Suspect != (test.repairs == 0) {
				t.Errorf("%d repairs, want %d; the group is suspect: %v", n, test.repairs, f.g.Known().Suspect)
			}
			f.wantTrue()
		})
	}
}
