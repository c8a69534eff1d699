//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestACreationWaitsForOneRemovalAtMostHoweverManyThereAre(t *testing.T) {
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroup(testGroup, testExtent, 600)
	m.fake.SetMetadataLimit(testGroup, 16<<20)
	var slow atomic.Bool
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpRemove && slow.Load() {
			time.Sleep(30 * time.Millisecond)
		}
		return nil
	}
	d := m.start(t)
	ids := make([]string, 8*reclaim.MaxRemoved)
	for i := range ids {
		ids[i] = d.create(request(fmt.Sprintf("old-%d", i), 1)).GetId()
	}
	slow.Store(true)
	for _, id := range ids {
		d.delete(id)
	}
	for i := range 3 {
		before := m.fake.Commands(lvmfake.OpRemove)
		d.create(request(fmt.Sprintf("new-%d", i), 1))
		// One removal that was under way, and one that began before the creation asked for its turn.
		if n := m.fake.Commands(lvmfake.OpRemove) - before; n > 2 {
			t.Errorf("a creation waited for %d removals", n)
		}
	}
	slow.Store(false)
	waittest.Until(t, "all are gone", func() bool { return len(d.list()) == 3 && d.available() == 597 })
	if n := m.fake.Commands(lvmfake.OpRemove); n > len(ids)/4 {
		t.Errorf("%d commands removed %d volumes", n, len(ids))
	}
}
