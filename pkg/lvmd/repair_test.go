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

func TestWhatAKilledExpansionLeftInconsistentIsRepairedBeforeAnythingElse(t *testing.T) {
	for _, c := range []struct {
		name string
		// committed means that the command was killed after its commit.
		committed bool
		// locked means that another program at first keeps lvmd from repairing the group.
		locked bool
	}{
		{"before its commit", false, false},
		{"after its commit", true, false},
		{"while another program changes the group", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t, probeNow)
			v := d.create(request("pvc-1", 2))
			grow := func(extents int64) error {
				_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: extents * testExtent})
				return err
			}
			must.Succeed(t, grow(3))
			if extends, repairs := m.fake.Commands(lvmfake.OpExtend), m.fake.Commands(lvmfake.OpRepair); extends != 1 || repairs != 0 {
				t.Errorf("an expansion takes %d commands, and %d that repair", extends, repairs)
			}
			var killed atomic.Bool
			kill := func(op lvmfake.Op) error {
				if op != lvmfake.OpExtend || !killed.CompareAndSwap(false, true) {
					return nil
				}
				m.fake.MakeInconsistent(testGroup, v.GetId()+"_rimage_1")
				return errors.New("killed")
			}
			var repairs atomic.Int64
			var locked atomic.Bool
			locked.Store(c.locked)
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpRepair {
					repairs.Add(1)
					if locked.Load() {
						return fmt.Errorf("locked: %w", lvm.ErrBusy)
					}
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
			if inconsistent, err := m.fake.Inconsistent(testGroup); err != nil || (len(inconsistent) > 0) != c.locked {
				t.Errorf("left when the expansion is answered: %q, error %v", inconsistent, err)
			}
			locked.Store(false)
			waittest.Until(t, "the devices are repaired", func() bool {
				inconsistent, err := m.fake.Inconsistent(testGroup)
				return err == nil && len(inconsistent) == 0
			})
			if err := grow(5); err != nil {
				t.Errorf("it is asked for again: %v", err)
			}
			d.delete(v.GetId())
			d.checkClean()
			if n := repairs.Load(); n == 0 || c.locked != (n > 1) {
				t.Errorf("%d attempts to repair, want one, or more where the group was locked", n)
			}
		})
	}
}

func TestWhatAKilledExpansionLeftInconsistentIsRepairedAtTheStartBeforeItIsWiped(t *testing.T) {
	for _, refused := range []int64{0, 1} {
		t.Run(fmt.Sprintf("after %d attempts that failed", refused), func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			v := d.create(request("pvc-1", 2))
			d.stop()
			m.fake.MakeInconsistent(testGroup, v.GetId()+"_rimage_0")
			var early atomic.Bool
			m.fake.BeforeZero = func(string, string, int64, int64) error {
				if inconsistent, err := m.fake.Inconsistent(testGroup); err != nil || len(inconsistent) > 0 {
					early.Store(true)
				}
				return nil
			}
			var repairs atomic.Int64
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if op == lvmfake.OpRepair && repairs.Add(1) <= refused {
					return fmt.Errorf("locked: %w", lvm.ErrBusy)
				}
				return nil
			}
			d = m.start(t)
			d.delete(v.GetId())
			d.checkClean()
			if early.Load() || repairs.Load() != refused+1 {
				t.Errorf("%d attempts to repair it; it was wiped before: %v", repairs.Load(), early.Load())
			}
		})
	}
}
