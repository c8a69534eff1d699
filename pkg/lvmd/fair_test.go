//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/fairqueue"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestACreationWaitsForOneRemovalAtMostHoweverManyThereAre(t *testing.T) {
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroup(testGroup, testExtent, 600)
	m.fake.SetMetadataLimit(testGroup, 16<<20)
	begun, end := make(chan struct{}, 1000), make(chan struct{})
	endAll := sync.OnceFunc(func() { close(end) })
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpRemove {
			begun <- struct{}{}
			<-end
		}
		return nil
	}
	// Without polls, only the creation and the removal ask for the slot.
	d := m.start(t, func(_ *daemon, o *Options) { o.PollInterval = time.Hour })
	t.Cleanup(endAll)
	ids := make([]string, 8*reclaim.MaxRemoved)
	for i := range ids {
		ids[i] = d.create(request(fmt.Sprintf("old-%d", i), 1)).GetId()
	}
	for _, id := range ids {
		d.delete(id)
	}
	for i := range 3 {
		<-begun
		created := make(chan error, 1)
		go func() {
			_, err := d.client.CreateVolume(t.Context(), fsRequest(fmt.Sprintf("new-%d", i), 4, "ext4"))
			created <- err
		}()
		waittest.Until(t, "the creation waits for the removal", func() bool { return d.groups.Named(testGroup).Queue().Waiting > 0 })
		end <- struct{}{}
		waittest.Until(t, "the creation ends before the next removal does", func() bool { return len(created) > 0 })
		must.Succeed(t, <-created)
	}
	endAll()
	waittest.Until(t, "all are gone", func() bool { return len(d.list()) == 3 && d.available() == 588 })
}

// Each command of churn waits until all who can ask for the group's slot do so, and all wipes
// are done: the number of remaining deleted volumes then depends only on the order of turns,
// not on time.
type churn struct {
	*daemon
	tenants int
	// on is true from the start of the load until the first namespace ends.
	on atomic.Bool
	// most is the maximum of deleted volumes in LVM at a creation.
	most, deleted atomic.Int64
}

func (c *churn) before(_ context.Context, op lvmfake.Op, _ string) error {
	if op != lvmfake.OpCreate && op != lvmfake.OpTag && op != lvmfake.OpRemove {
		return nil
	}
	for deadline := time.Now().Add(waittest.Limit); c.on.Load() && !c.saturated(op); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			c.t.Errorf("not all wait for the slot while %s runs: %+v", op, c.groups.Named(testGroup).Queue())
			c.on.Store(false)
		}
	}
	return nil
}

func (c *churn) saturated(op lvmfake.Op) bool {
	left, due := int64(0), 0
	for _, v := range c.inventory.Inspect() {
		switch v.State {
		case inventory.Marked, inventory.Deleting:
			return false
		case inventory.Deleted, inventory.Wiped:
			left, due = left+1, 1
		default:
		}
	}
	waiting := c.tenants
	if op == lvmfake.OpCreate {
		waiting += due - 1
	}
	if c.groups.Named(testGroup).Queue().Waiting != waiting {
		return false
	}
	if op == lvmfake.OpCreate {
		c.most.Store(max(c.most.Load(), left))
	}
	return true
}

func (c *churn) tenant(n, rounds int) {
	defer c.on.Store(false)
	for i := range rounds {
		r := fsRequest(fmt.Sprintf("pvc-%d-%d", n, i), 4, "ext4")
		r.Owner.ClaimNamespace = fmt.Sprintf("ns-%d", n)
		created, err := c.client.CreateVolume(c.t.Context(), r)
		if err == nil {
			_, err = c.client.DeleteVolume(c.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: created.GetVolume().GetId()})
		}
		if err != nil {
			c.t.Error(err)
			return
		}
		if c.on.Load() {
			c.deleted.Add(1)
		}
	}
}

func TestDeletedVolumesAreRemovedWhileNamespacesCreateAndDelete(t *testing.T) {
	for tenants, rounds := range map[int]int{10: 25, 90: 8} {
		t.Run(fmt.Sprintf("%d namespaces", tenants), func(t *testing.T) {
			m := newMachine(t)
			m.fake.RemoveGroup(testGroup)
			m.fake.AddGroup(testGroup, testExtent, 2000)
			m.fake.SetMetadataLimit(testGroup, 16<<20)
			// Only commands ask for the slot.
			d := m.start(t, func(_ *daemon, o *Options) { o.PollInterval = time.Hour })
			c := &churn{daemon: d, tenants: tenants}
			m.fake.Before = c.before
			before := m.fake.Commands(lvmfake.OpTag) + m.fake.Commands(lvmfake.OpRemove)
			c.on.Store(true)
			var wg sync.WaitGroup
			for n := range tenants {
				wg.Go(func() { c.tenant(n, rounds) })
			}
			wg.Wait()
			deleted, most := c.deleted.Load(), c.most.Load()
			commands := m.fake.Commands(lvmfake.OpTag) + m.fake.Commands(lvmfake.OpRemove) - before
			t.Logf("%d volumes were deleted, at most %d of them were left; %d commands marked and removed them", deleted, most, commands)
			if deleted < int64(tenants*(rounds-2)) {
				t.Errorf("%d volumes were deleted under load, want more", deleted)
			}
			// Between two turns of the removal, one share is marked, one removed, and one may have
			// arrived since.
			if bound := int64(3 * min(tenants, fairqueue.MaxTenantTurns)); most > bound {
				t.Errorf("%d of %d deleted volumes were left at once, want at most %d", most, deleted, bound)
			}
			if int64(commands) > deleted/3 {
				t.Errorf("%d commands marked and removed %d volumes", commands, deleted)
			}
			waittest.Until(t, "all are gone", func() bool { return len(c.list()) == 0 && c.available() == 2000 })
		})
	}
}
