//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// slowRemovals times out a command that removes more than most volumes.
type slowRemovals struct {
	lvm.Groups
	most         int
	first        sync.Once
	gather       func()
	largest, cut atomic.Int64
}

func (s *slowRemovals) Remove(ctx context.Context, group string, volumes []string) error {
	s.first.Do(s.gather)
	s.largest.Store(max(s.largest.Load(), int64(len(volumes))))
	if len(volumes) > s.most {
		s.cut.Add(1)
		return &lvm.CommandError{Command: "lvremove", ExitCode: -1, Message: "killed", Err: lvm.ErrTimedOut}
	}
	return s.Groups.Remove(ctx, group, volumes)
}

func TestManySnapshotsThatAreDeletedAtOnceAreRemovedInBatchesThatEndInTime(t *testing.T) {
	const snapshots = 50
	for name, most := range map[string]int{"each takes a while": reclaim.MaxThinRemoved, "each takes nearly as long as a command may": 1} {
		t.Run(name, func(t *testing.T) {
			m := thinMachine(t, "size: 160Mi, overprovisioning: 10")
			slow := &slowRemovals{most: most}
			d := m.start(t, func(_ *daemon, o *Options) {
				slow.Groups, o.LVM = o.LVM, slow
				o.probeInterval = time.Millisecond
			})
			v := d.create(request("a", 1))
			var ids []string
			for i := range snapshots {
				ids = append(ids, d.snapshot(fmt.Sprint("snap-", i), v.GetId()).GetId())
			}
			slow.gather = func() {
				waittest.Until(t, "the others wait for their removal", func() bool {
					for _, v := range d.inventory.Inspect() {
						if v.State == inventory.Deleted || v.State == inventory.Marked {
							return false
						}
					}
					return true
				})
			}
			// Hold the slot so that one command marks all.
			done := must.Get(d.groups.Acquire(t.Context(), d.groups.Named(testGroup)))(t)
			for _, id := range ids {
				d.deleteSnapshot(id)
			}
			done()
			waittest.Until(t, "all are removed", func() bool { return len(m.volumeNames(t)) == 2 })
			if got := slow.largest.Load(); got > reclaim.MaxThinRemoved {
				t.Errorf("%d snapshots were removed by one command", got)
			}
			if got := slow.cut.Load(); most > 1 && got > 0 || got > snapshots {
				t.Errorf("%d commands were killed", got)
			}
			d.delete(v.GetId())
			d.checkModel()
		})
	}
}
