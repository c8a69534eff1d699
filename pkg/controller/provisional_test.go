package controller

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) knows(node, name string) {
	h.t.Helper()
	waittest.Until(h.t, "the controller knows "+name, func() bool {
		view, _ := h.c.core.Fleet.View(node)
		vol := view.ByName[name]
		return vol != nil && h.c.core.VolumeOn(node, vol.GetId()) != nil
	})
}

func TestAVolumeWithoutAPersistentVolumeIsRemovedOnceItsClaimIsGone(t *testing.T) {
	h := newHarness(t)
	node, other := h.node("n1", 4*gib), h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("bound", "n1")
	h.knows("n1", "pvc-uid-bound")
	h.boundVolume("moved", "n2")
	h.knows("n2", "pvc-uid-moved")
	made := func(uid string, provisional bool) {
		t.Helper()
		must.Get(node.CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{
			Name: "pvc-uid-" + uid, RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, Provisional: provisional,
			Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimNamespace: "default", ClaimName: uid, ClaimUid: "uid-" + uid},
		}))(t)
		waittest.Until(t, uid+" is reported", func() bool {
			v, _ := h.c.core.Fleet.View("n1")
			return v.ByName["pvc-uid-"+uid] != nil
		})
	}
	made("gone", true)
	made("used", false)
	made("moved", true) // after its claim got one on another node
	// An administrator deleted its PersistentVolume.
	h.claim("had-one", "", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-uid-had-one" })
	made("had-one", true)
	if !node.Volumes()["pvc-uid-bound"].GetProvisional() {
		t.Error("the provisioner asks for a volume that is not provisional")
	}

	a := newAuditor(h.c.core, false, audit.DefaultOrphanGrace, h.leader().provisioner.Busy)
	a.Pass(t.Context())
	if got := node.Volumes(); len(got) != 5 {
		t.Errorf("volumes that were just made were removed: left are %v", got)
	}
	if node.Volumes()["pvc-uid-bound"].GetProvisional() {
		t.Error("a volume that a PersistentVolume names stays provisional")
	}
	// A Pod gets it after the node's report.
	made("late", true)
	views := h.c.core.Fleet.Views()
	must.Get(node.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: node.Volumes()["pvc-uid-late"].GetId()}))(t)
	a.Grace = 0
	a.PassWith(t.Context(), views)
	for _, warning := range h.warnings() {
		if id := node.Volumes()["pvc-uid-late"].GetId(); strings.Contains(warning, id) {
			t.Errorf("volume %s, which a Pod got, has a warning: %s", id, warning)
		}
	}
	for uid, want := range map[string]bool{"bound": true, "gone": false, "used": true, "moved": false, "had-one": true, "late": true} {
		if got := node.Volumes()["pvc-uid-"+uid] != nil; got != want {
			t.Errorf("the volume of claim %s is there: %v, want %v", uid, got, want)
		}
	}
	if other.Volumes()["pvc-uid-moved"] == nil {
		t.Error("the volume that a PersistentVolume names on the other node was removed")
	}
}

func TestNodesNoteBesideEachOtherWhatIsKept(t *testing.T) {
	h := newHarness(t)
	h.class("carve", nil)
	nodes := map[string]*lvmdfake.Server{"n1": h.node("n1", gib), "n2": h.node("n2", gib)}
	h.run()
	var asked sync.WaitGroup
	asked.Add(len(nodes))
	for name, node := range nodes {
		h.boundVolume("on-"+name, name)
		node.SetHooks(lvmdfake.Hooks{BeforeKeep: func(ctx context.Context, _ *lvmdv1.KeepVolumeRequest) error {
			asked.Done()
			all := make(chan struct{})
			go func() { asked.Wait(); close(all) }()
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
	}
	for name := range nodes {
		h.knows(name, "pvc-uid-on-"+name)
	}
	h.audit(false)
	for name, node := range nodes {
		if node.Volumes()["pvc-uid-on-"+name].GetProvisional() {
			t.Errorf("the volume on %s stays provisional", name)
		}
	}
}

func TestAProvisionalVolumeIsNoOrphanForAMinute(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.stray(node, "n1", "gone", "cluster")
	vol := node.Volumes()["pvc-gone"]
	vol.Provisional = true
	a := newAuditor(h.c.core, false, time.Hour, h.leader().provisioner.Busy)
	for age, want := range map[time.Duration]bool{audit.LeastOrphanGrace + time.Second: true, audit.LeastOrphanGrace / 2: false} {
		vol.CreatedAt = timestamppb.New(a.Now().Add(-age))
		if got := a.Classify(vol); (got == audit.KindOrphan) != want {
			t.Errorf("after %v it is %q, want an orphan: %v", age, got, want)
		}
	}
}
