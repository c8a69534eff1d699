//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestWhatAKilledExpansionLeftTornIsMendedBeforeAnythingElse(t *testing.T) {
	for _, c := range []struct {
		name string
		// committed says whether the command was killed after its commit.
		committed bool
		// refused is how often mending fails at first.
		refused int64
	}{
		{"before its commit", false, 0},
		{"after its commit", true, 0},
		{"while somebody else changes the group", false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			probeNow(d)
			v := d.create(request("pvc-1", 2))
			grow := func(extents int64) error {
				_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: extents * testExtent})
				return err
			}
			must.Succeed(t, grow(3))
			if extends, mends := m.fake.Commands(lvmfake.OpExtend), m.fake.Commands(lvmfake.OpMend); extends != 1 || mends != 0 {
				t.Errorf("an expansion takes %d commands, and %d that mend", extends, mends)
			}
			var killed atomic.Bool
			kill := func(op lvmfake.Op) error {
				if op != lvmfake.OpExtend || !killed.CompareAndSwap(false, true) {
					return nil
				}
				m.fake.Tear(testGroup, v.GetId()+"_rimage_1")
				return errors.New("killed")
			}
			var mends atomic.Int64
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpMend && mends.Add(1) <= c.refused {
					return fmt.Errorf("locked: %w", lvm.ErrBusy)
				}
				if c.committed {
					return nil
				}
				return kill(op)
			}
			if c.committed {
				m.fake.After = func(op lvmfake.Op, _ string) error { return kill(op) }
			}
			if err := grow(5); err == nil || !killed.Load() {
				t.Errorf("the killed expansion: error %v", err)
			}
			if torn, err := m.fake.Torn(testGroup); err != nil || (len(torn) > 0) != (c.refused > 0) {
				t.Errorf("left when the expansion is answered: %q, error %v", torn, err)
			}
			waittest.Until(t, "the devices are mended", func() bool {
				torn, err := m.fake.Torn(testGroup)
				return err == nil && len(torn) == 0
			})
			if err := grow(5); err != nil {
				t.Errorf("it is asked for again: %v", err)
			}
			d.delete(v.GetId())
			d.checkClean()
			if n := mends.Load(); n != c.refused+1 {
				t.Errorf("%d attempts to mend, want %d", n, c.refused+1)
			}
		})
	}
}

func TestWhatAKilledExpansionLeftTornIsMendedAtTheStartBeforeItIsWiped(t *testing.T) {
	for _, refused := range []int64{0, 1} {
		t.Run(fmt.Sprintf("after %d attempts that failed", refused), func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			v := d.create(request("pvc-1", 2))
			d.stop()
			m.fake.Tear(testGroup, v.GetId()+"_rimage_0")
			var early atomic.Bool
			m.fake.BeforeZero = func(string, string, int64, int64) error {
				if torn, err := m.fake.Torn(testGroup); err != nil || len(torn) > 0 {
					early.Store(true)
				}
				return nil
			}
			var mends atomic.Int64
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpMend && mends.Add(1) <= refused {
					return fmt.Errorf("locked: %w", lvm.ErrBusy)
				}
				return nil
			}
			d = m.start(t)
			d.delete(v.GetId())
			d.checkClean()
			if early.Load() || mends.Load() != refused+1 {
				t.Errorf("%d attempts to mend it; it was wiped before: %v", mends.Load(), early.Load())
			}
		})
	}
}
