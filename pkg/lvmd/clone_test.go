//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestACloneThatWasNotEnlargedWhenTheJournalWasLostIsMadeAgainWhenAskedFor(t *testing.T) {
	m := snapshotMachine(t)
	var hangs atomic.Bool
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtend && hangs.Load() {
			select {}
		}
		return nil
	}
	d := m.start(t)
	v := d.create(request("v", 4))
	d.fill(v.GetId(), 0x66)
	hangs.Store(true)
	ask := from(request("c", 8), v.GetId())
	go d.client.CreateVolume(context.Background(), ask)
	waittest.Until(t, "the clone is there", func() bool {
		found, err := m.fake.Scan(t.Context(), []string{testGroup})
		return err == nil && len(found[0].Volumes) == 3 && m.fake.Commands(lvmfake.OpExtend) == 1
	})
	d.kill()
	hangs.Store(false)
	m.loseJournal(t)
	d = m.start(t)
	c := d.create(ask)
	if c.GetSizeBytes() != 8*testExtent {
		t.Errorf("volume %v", c)
	}
	d.shows(c.GetId(), 4, 0x66)
	d.checkModel()
	waittest.Until(t, "the first clone is removed", func() bool { return d.available() == 60-12 }, func() any { return d.available() })
}

func TestACloneOfWhichTheEnlargementEndedLateCountsForWhatItHas(t *testing.T) {
	m := snapshotMachine(t)
	var fails atomic.Bool
	m.fake.After = func(op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtend && fails.Load() {
			return errors.New("killed after its commit")
		}
		return nil
	}
	d := m.start(t)
	v := d.create(request("v", 4))
	all := d.available()
	fails.Store(true)
	if _, err := d.client.CreateVolume(t.Context(), from(request("c", 8), v.GetId())); err == nil {
		t.Fatal("the clone was made")
	}
	d.checkModelEventually()
	if got := d.available(); got != all {
		t.Errorf("%d extents are available, want %d", got, all)
	}
}
