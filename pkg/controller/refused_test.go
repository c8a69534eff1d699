package controller

import (
	"fmt"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestNothingIsOfferedOfANodeWhoseReportIsRefused(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	h.cutOff("n1")
	for i := range fleet.MaxVolumes + 1 {
		node.Put(&lvmdv1.Volume{Id: fmt.Sprintf("v%d", i), DeviceClass: "local"})
	}
	h.net.Attach(node)
	h.event("Warning "+cluster.ReasonReportRefused, "node n1", "more volumes than the 20000")
	waittest.Until(t, "no free space is published for the node", h.capacityIs("n1", 0))
}
