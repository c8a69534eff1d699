package main

import (
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
)

const gib = 1 << 30

func TestAsManyNodesAreFullAsAskedFor(t *testing.T) {
	for _, percentage := range []int{0, 50, 95, 100} {
		full := 0
		for i := range 1000 {
			if isFull(i, percentage) {
				full++
			}
		}
		if full != percentage*10 {
			t.Errorf("%d of 1000 nodes are full, want %d %%", full, percentage)
		}
	}
}

func TestANodeHoldsWhatItIsToHold(t *testing.T) {
	n := must.Get(newNode(t.Context(), options{classes: 3, volumes: 4, bytes: gib}, "n", true, slog.New(slog.DiscardHandler)))(t)
	reported := must.Get(n.lvmd.ListClasses(t.Context(), &lvmdv1.ListClassesRequest{}))(t).GetClasses()
	for _, class := range reported {
		if class.GetAvailableBytes() != leftExtents*lvmdfake.AllocationUnit || class.GetDefault() != (class.GetName() == defaultClass) {
			t.Errorf("a full node reports %v", class)
		}
	}
	byClass := map[string]int{}
	for _, v := range held([]*node{n}) {
		byClass[v.Class]++
	}
	if want := map[string]int{"local": 2, "local-2": 1, "local-3": 1}; len(reported) != 3 || !maps.Equal(byClass, want) {
		t.Errorf("%d classes hold %v, want %v", len(reported), byClass, want)
	}
}

func TestAVolumeGroupChangesForOneVolumeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := must.Get(newNode(t.Context(), options{classes: 2, bytes: gib, createTime: time.Second}, "n", false, slog.New(slog.DiscardHandler)))(t)
		begin := time.Now()
		var group errgroup.Group
		for name, class := range map[string]string{"a": "", "b": "local", "c": "local", "d": "local-2"} {
			group.Go(func() error { return n.hold(t.Context(), name, class, lvmdfake.AllocationUnit, nil) })
		}
		must.Succeed(t, group.Wait())
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("three volumes in one group and one in another took %v", took)
		}
		for range 2 { // the second finds no volume
			must.Get(n.lvmd.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "a"}))(t)
		}
		if took := time.Since(begin); took != 4*time.Second {
			t.Errorf("with one deletion they took %v", took)
		}
	})
}
