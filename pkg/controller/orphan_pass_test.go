package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestOnePassListsPersistentVolumesOnceForAllOrphans(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	other := w.harness.node("n2", gib)
	for i := range 3 {
		w.stray(w.node, "n1", fmt.Sprint("lost-1-", i), "cluster")
		w.stray(other, "n2", fmt.Sprint("lost-2-", i), "cluster")
	}
	var lists atomic.Int32
	w.react("list", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) {
		lists.Add(1)
		return false, nil, nil
	})
	w.a.Pass(t.Context())
	if got := lists.Load(); got != 1 {
		t.Errorf("a pass with 6 orphans: want 1 list of PersistentVolumes, got %d", got)
	}
	if got := w.tried(audit.OrphanRemoved); got != 6 {
		t.Errorf("want 6 orphans removed, got %v", got)
	}
	w.reported(1)
	waittest.Until(t, "n2 reports that they are gone", func() bool { v, _ := w.c.core.Fleet.View("n2"); return len(v.Volumes) == 0 })
	before := lists.Load()
	if w.a.Pass(t.Context()); lists.Load() != before {
		t.Error("a pass without orphans listed PersistentVolumes")
	}
}

func TestOrphansOfNodesAreRemovedBesideEachOther(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.a.RemovalTimeout = 5 * time.Second
	other := w.harness.node("n2", gib)
	w.stray(w.node, "n1", "lost-1", "cluster")
	w.stray(other, "n2", "lost-2", "cluster")
	// Each node removes only after the other one was asked.
	meet := func(mine chan<- struct{}, theirs <-chan struct{}) lvmdfake.Hooks {
		return lvmdfake.Hooks{BeforeDelete: func(ctx context.Context, _ *lvmdv1.DeleteVolumeRequest) error {
			close(mine)
			select {
			case <-theirs:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
	}
	first, second := make(chan struct{}), make(chan struct{})
	w.node.SetHooks(meet(first, second))
	other.SetHooks(meet(second, first))
	w.a.Pass(t.Context())
	if got := w.tried(audit.OrphanRemoved); got != 2 {
		t.Errorf("two nodes, each of which waits for the other: want 2 orphans removed, got %v", got)
	}
}

func TestANodeThatHangsCostsAPassOneTimeout(t *testing.T) {
	w := newAuditing(t, names.NodeLossKeep)
	w.a.RemovalTimeout = 2 * time.Second
	w.node.Resize("local", 8*gib)
	for i := range audit.OrphansPerPass {
		w.stray(w.node, "n1", fmt.Sprint("lost-1-", i), "cluster")
	}
	other := w.harness.node("n2", gib)
	for i := range 3 {
		w.stray(other, "n2", fmt.Sprint("lost-2-", i), "cluster")
	}
	var asked atomic.Int32
	w.node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(ctx context.Context, _ *lvmdv1.DeleteVolumeRequest) error {
		asked.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}})
	w.a.Pass(t.Context())
	if got := asked.Load(); got != 1 {
		t.Errorf("want the node that hangs to be asked once, got %d times", got)
	}
	// The first node has as many as a pass has attempts.
	if got := len(other.Volumes()); got != 0 {
		t.Errorf("want the other node's orphans removed, got %d left", got)
	}
	if got := w.tried(audit.OrphanFailed); got != 1 {
		t.Errorf("want 1 attempt failed, got %v", got)
	}
}

func TestAPersistentVolumeThatIsWrittenSinceTheListKeepsItsVolume(t *testing.T) {
	for name, test := range map[string]struct {
		pv, driver string
		cached     bool // whether the cache has it at the removal
	}{
		"its own, which the cache does not have yet": {pv: "", driver: "hidden.from.the.index"},
		"under another name":                         {pv: "adopted", driver: names.Driver, cached: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAuditing(t, names.NodeLossKeep)
			w.stray(w.node, "n1", "one", "cluster")
			w.stray(w.node, "n1", "two", "cluster")
			var removals atomic.Int32
			var kept atomic.Value
			w.node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) error {
				if removals.Add(1) > 1 {
					return nil
				}
				for volume, vol := range w.node.Volumes() {
					if vol.GetId() == r.GetId() || volume == "pvc-uid-c" {
						continue
					}
					kept.Store(volume)
					pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}, Spec: v1.PersistentVolumeSpec{
						PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: test.driver, VolumeHandle: vol.GetId()}}}}
					if test.pv != "" {
						pv.Name = test.pv
					}
					must.Get(w.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}))(t)
					waittest.Until(t, "the cache has it", func() bool {
						_, there, err := w.c.core.Volumes.GetStore().GetByKey(pv.Name)
						return err == nil && (there || !test.cached)
					})
				}
				return nil
			}})
			w.a.Pass(t.Context())
			if volume, _ := kept.Load().(string); w.node.Volumes()[volume] == nil {
				t.Errorf("volume %q was removed, which a PersistentVolume names", volume)
			}
			if got := w.tried(audit.OrphanKnown); got != 1 {
				t.Errorf("carve_controller_orphans_total{result=%q}: want 1, got %v", audit.OrphanKnown, got)
			}
		})
	}
}
