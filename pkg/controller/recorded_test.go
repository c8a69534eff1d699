package controller

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/waittest"
)

// unpin replaces the nodeAffinity of new PersistentVolumes by a recorded node.
func (h *harness) unpin() {
	h.react("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pv := action.(clienttesting.CreateAction).GetObject().(*v1.PersistentVolume)
		pv.Spec.CSI.VolumeAttributes[names.ContextNode], _ = objects.NodeOf(pv)
		pv.Spec.NodeAffinity = nil
		return false, nil, nil
	})
}

func TestAVolumeWithoutNodeAffinityIsWhereItSays(t *testing.T) {
	for name, act := range map[string]func(*testing.T, *harness){
		"it is deleted with its claim": func(t *testing.T, h *harness) {
			h.deleteClaim("c")
			waittest.Until(t, "capacity follows", h.capacityIs("n1", gib))
		},
		"it grows": func(t *testing.T, h *harness) {
			h.grow("c", "200Mi")
			waittest.Until(t, "PersistentVolume and capacity follow", func() bool {
				return h.pv("pvc-uid-c").Spec.Capacity.Storage().Value() == 200*mib && h.capacityIs("n1", gib-200*mib)()
			})
		},
		"it is cloned": func(t *testing.T, h *harness) {
			h.claim("clone", "n2", cloneOf("c"))
			waittest.Until(t, "the clone is bound", h.bound("clone"))
			if node, _ := objects.NodeOf(h.pv("pvc-uid-clone")); node != "n1" {
				t.Errorf("the clone is on %q", node)
			}
		},
		"its node is lost": func(t *testing.T, h *harness) {
			h.cutOff("n1")
			h.deleteNode("n1")
			h.event("Warning NodeLost", "n1", "made again elsewhere")
			waittest.Until(t, "claim and volume are gone", func() bool { return h.claimIsGone("c") && h.volumes() == 0 })
		},
		"its node comes back with other disks": func(t *testing.T, h *harness) {
			w := &auditing{harness: h, a: newAuditor(h.c.core, false, 0, h.leader().provisioner.Busy)}
			w.a.MissingGrace = 1
			w.reboot(otherDisks())
			waittest.Until(t, "claim and volume are gone", func() bool { w.a.Pass(t.Context()); return h.claimIsGone("c") && h.volumes() == 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.unpin()
			h.node("n1", gib)
			h.node("n2", gib)
			h.class("carve", func(c *storagev1.StorageClass) {
				recreate(c)
				expandable(c)
				c.Parameters[names.ParamPodVolumes] = names.PodVolumesMovable // or it would be pinned
			})
			h.run()
			if pv := h.boundVolume("c", "n1"); pv.Spec.NodeAffinity != nil {
				t.Fatalf("nodeAffinity %v", pv.Spec.NodeAffinity)
			}
			waittest.Until(t, "capacity follows", h.capacityIs("n1", gib-100*mib))
			act(t, h)
		})
	}
}
