package controller

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestAClaimLeavesANodeWhoseLVMHangs: the node's first answer leaves open what it did, the
// following ones say that it did nothing.
func TestAClaimLeavesANodeWhoseLVMHangs(t *testing.T) {
	h := newHarness(t)
	first := true
	h.node("n1", gib).SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		if first {
			first = false
			return lvmdfake.Error(codes.DeadlineExceeded, names.ReasonCommandTimedOut, "creating: command timed out")
		}
		return lvmdfake.Error(codes.Unavailable, names.ReasonNotResponding, "LVM has not answered")
	}})
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(t, "the scheduler is asked for another node", func() bool { return h.getClaim("c").Annotations["volume.kubernetes.io/selected-node"] == "" })
	waittest.Until(t, "n1 is not offered", h.capacityIs("n1", 0))
	h.selectNode("c", "n2")
	waittest.Until(t, "claim is bound", h.bound("c"))
	if node, _ := cluster.NodeOf(h.pv("pvc-uid-c")); node != "n2" {
		t.Errorf("the volume is on %s", node)
	}
}
