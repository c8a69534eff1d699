package controller

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The node's first answer leaves its outcome open. If LVM hangs entirely, later ones prove
// that lvmd did nothing; if LVM answers scans, they are like the first.
func TestAClaimLeavesANodeWhoseLVMHangs(t *testing.T) {
	killed := lvmdfake.Error(codes.DeadlineExceeded, names.ReasonCommandTimedOut, "creating: command timed out")
	for name, hooks := range map[string]func() lvmdfake.Hooks{
		"scans, too": func() lvmdfake.Hooks {
			first := true
			return lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
				if first {
					first = false
					return killed
				}
				return lvmdfake.Error(codes.Unavailable, names.ReasonNotResponding, "LVM has not answered")
			}}
		},
		"commands that make volumes, before they do": func() lvmdfake.Hooks {
			return lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error { return killed }}
		},
		"commands that make volumes, afterwards": func() lvmdfake.Hooks {
			return lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error { return killed }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1 := h.node("n1", gib)
			n1.SetHooks(hooks())
			h.node("n2", gib)
			h.class("carve", nil)
			h.run()
			h.claim("c", "n1", nil)
			waittest.Until(t, "the scheduler is asked for another node", func() bool { return h.getClaim("c").Annotations["volume.kubernetes.io/selected-node"] == "" })
			waittest.Until(t, "n1 is not offered", h.capacityIs("n1", 0))
			h.selectNode("c", "n2")
			waittest.Until(t, "claim is bound", h.bound("c"))
			if node, _ := objects.NodeOf(h.pv("pvc-uid-c")); node != "n2" {
				t.Errorf("the volume is on %s", node)
			}
			if left := n1.Volumes(); len(left) > 0 {
				t.Errorf("left on n1: %v", left)
			}
		})
	}
}
