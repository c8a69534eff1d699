//go:build !kernel

package lvmd

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/waittest"
)

// lateLVM fails for the group second after the given number of scans.
type lateLVM struct {
	lvm.Groups
	failed *lvm.CommandError
	after  atomic.Int32
	late   atomic.Bool
}

func (l *lateLVM) Scan(ctx context.Context, groups []string) ([]lvm.Group, error) {
	if l.late.Load() && slices.Contains(groups, "second") && l.after.Add(-1) < 0 {
		return nil, l.failed
	}
	return l.Groups.Scan(ctx, groups)
}

// LVM fails in the first scan, or in those after creating thin pools and activating volumes.
func TestAGroupThatDoesNotAnswerAtTheStartHoldsUpNoOther(t *testing.T) {
	timedOut := &lvm.CommandError{Command: "fullreport", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
	for what, c := range map[string]struct {
		scans  int32
		failed *lvm.CommandError
	}{
		"the first scan": {0, timedOut}, "the second": {1, timedOut}, "the third": {2, timedOut},
		"failed": {0, &lvm.CommandError{Command: "fullreport", ExitCode: 5, Message: "Cannot read it"}},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			m.fake.AddGroup("second", testExtent, testTotal)
			m.fake.AddGroup("third", testExtent, testTotal)
			m.config += "- {name: second, volumeGroup: second}\n"
			d := m.start(t)
			r := request("kept", 1)
			r.DeviceClass = "second"
			kept, first := d.create(r), d.create(request("first", 1))
			d.stop()
			m.config += "- {name: thin, volumeGroup: third, type: thin, thin: {pool: pool, size: 50%}}\n"
			m.fake.Deactivate()

			slow := &lateLVM{failed: c.failed}
			slow.after.Store(c.scans)
			slow.late.Store(true)
			d = m.start(t, probeNow, func(_ *daemon, o *Options) { slow.Groups, o.LVM = o.LVM, slow })
			if c := d.classNamed("second").GetConditions(); len(c) != 1 || c[0].GetType() != conditions.NotResponding {
				t.Errorf("the class of the group that does not answer has %v", c)
			}
			r = request("another", 1)
			r.DeviceClass = "second"
			_, err := d.client.CreateVolume(t.Context(), r)
			wantCode(t, err, codes.Unavailable, names.ReasonNotResponding)
			r.DeviceClass = "thin"
			d.create(r)
			d.delete(first.GetId())
			d.create(request("meanwhile", 1))

			slow.late.Store(false)
			waittest.Until(t, "the group is served", func() bool { return len(d.classNamed("second").GetConditions()) == 0 })
			waittest.Until(t, "its volume has a device", func() bool {
				v := d.named(kept.GetId())
				return v != nil && len(v.GetConditions()) == 0
			}, func() any { return d.named(kept.GetId()) })
			d.delete(kept.GetId())
			waittest.Until(t, "it is removed", func() bool { return d.classNamed("second").GetAvailableBytes() == testTotal*testExtent })
		})
	}
}
