//go:build !kernel

package lvmd

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (d *daemon) message(kind string) string {
	d.t.Helper()
	for _, c := range d.class().GetConditions() {
		if c.GetType() == kind {
			return c.GetMessage()
		}
	}
	return ""
}

func (d *daemon) named(id string) *lvmdv1.Volume {
	d.t.Helper()
	for _, v := range d.list() {
		if v.GetId() == id {
			return v
		}
	}
	return nil
}

func TestAPoolThatIsCheckedForLongHoldsUpNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		// slow blocks while volumes are created in groups.
		slow    lvmfake.Op
		groups  []string
		refused bool
	}{
		"on its own": {lvmfake.OpCheckPool, []string{"large", "beside"}, false},
		"by LVM":     {lvmfake.OpActivatePool, []string{"large"}, true},
	} {
		t.Run(name, func(t *testing.T) { checkedForLong(t, c.slow, c.groups, c.refused) })
	}
}

func checkedForLong(t *testing.T, slow lvmfake.Op, classes []string, refused bool) {
	t.Helper()
	m := thinMachine(t, "size: 40Mi")
	m.fake.AddGroup("large", testExtent, testTotal)
	m.config += "- {name: large, volumeGroup: large}\n- {name: beside, volumeGroup: carve}\n"
	d := m.start(t)
	kept, deleted := d.create(request("kept", 1)), d.create(request("deleted", 1))
	d.stop()
	m.fake.Deactivate()

	killed, sound := make(chan struct{}), atomic.Bool{}
	m.fake.Before = func(ctx context.Context, op lvmfake.Op, _ string) error {
		switch {
		case op == slow:
			select {
			case <-killed:
			case <-ctx.Done():
			}
			if !sound.Load() {
				return &lvm.CommandError{Command: "lvchange", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
			}
		case op == lvmfake.OpBeginPoolCheck && refused:
			return &lvm.CommandError{Command: "lvchange", ExitCode: 5, Message: "it is not a component"}
		}
		return nil
	}
	d = m.start(t, func(_ *daemon, o *Options) { o.poolGrace, o.activationRetry = time.Millisecond, time.Millisecond })
	waittest.Until(t, "the pool is checked", func() bool { return m.fake.Commands(slow) > 0 })
	if why := d.message("PoolInactive"); !strings.Contains(why, "since 2") || !strings.Contains(why, "thin_check") || d.available() != 0 {
		t.Errorf("the class of the pool says %q", why)
	}
	for _, class := range classes {
		other := request("other-"+class, 1)
		other.DeviceClass = class
		d.delete(d.create(other).GetId())
	}
	d.delete(deleted.GetId())

	close(killed)
	waittest.Until(t, "the class says that it is tried again", func() bool { return strings.Contains(d.message("PoolInactive"), "tried again: ") })
	if got := d.inventory.Inspect()[deleted.GetId()]; got.Failures > 0 {
		t.Error("the removal of a volume was tried while its pool had no device")
	}
	sound.Store(true)
	waittest.Until(t, "the pool and its volume are there", func() bool {
		return len(d.class().GetConditions()) == 0 && d.named(kept.GetId()).GetDevicePath() != "" && d.available() == 9
	})
	d.delete(kept.GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == 10 })
	d.checkModel()
}

func TestWhatCouldNotBeActivatedAtTheStartIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v, w := d.create(request("a", 1)), d.create(request("b", 1))
	d.stop()
	m.fake.Deactivate()
	var fail atomic.Int64
	fail.Store(3)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpActivate && fail.Add(-1) >= 0 {
			return &lvm.CommandError{Command: "lvchange", ExitCode: 5, Message: "a component is active"}
		}
		return nil
	}
	d = m.start(t, func(_ *daemon, o *Options) { o.activationRetry = time.Millisecond })
	waittest.Until(t, "the volumes have their devices", func() bool {
		return d.named(v.GetId()).GetDevicePath() != "" && d.named(w.GetId()).GetDevicePath() != ""
	})
	d.delete(v.GetId())
	d.delete(w.GetId())
	d.checkModel()
}
