package controller

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

// reported reports whether a node knows the reservations of these claims, of 100 MiB each, and no others.
func reported(s *lvmdfake.Server, names ...string) func() bool {
	return func() bool {
		reserved := s.Reserved()
		for _, name := range names {
			if r := reserved["pvc-uid-"+name]; r.GetRequiredBytes() != 100*mib || r.GetDeviceClass() != "" {
				return false
			}
		}
		return len(reserved) == len(names)
	}
}

func noDisk(context.Context, *lvmdv1.CreateVolumeRequest) error {
	return status.Error(codes.Unavailable, "a disk is away")
}

func TestWhatWaitingClaimsHaveReservedIsReportedToTheirNode(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	n2 := h.node("n2", gib)
	h.class("carve", nil)
	n1.SetHooks(lvmdfake.Hooks{BeforeCreate: noDisk})
	h.run()
	h.claim("a", "n1", nil)
	h.claim("b", "n1", nil)
	h.claim("elsewhere", "n2", nil)
	waittest.Until(t, "both claims are reported to the node", reported(n1, "a", "b"), func() any { return n1.Reserved() })
	waittest.Until(t, "the claim on the other node is bound", h.bound("elsewhere"))
	if !reported(n2)() {
		t.Errorf("reported to the other node: %v", n2.Reserved())
	}

	h.net.Detach("n1")
	n1.Restart("n1")
	h.attach(n1, "n1")
	waittest.Until(t, "they are reported again to an lvmd that started again", reported(n1, "a", "b"), func() any { return n1.Reserved() })

	h.deleteClaim("b")
	waittest.Until(t, "the node learns that one is abandoned", reported(n1, "a"), func() any { return n1.Reserved() })
	n1.SetHooks(lvmdfake.Hooks{})
	waittest.Until(t, "the claim is bound", h.bound("a"))
	waittest.Until(t, "the node learns that nothing is reserved", reported(n1), func() any { return n1.Reserved() })
}

// TestANodeLearnsOfReservationsWhileItSeemsTooSmallForAPod has the node's capacity lowered as for a Pod whose
// claims do not fit there together.
func TestANodeLearnsOfReservationsWhileItSeemsTooSmallForAPod(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	n1.SetHooks(lvmdfake.Hooks{BeforeCreate: noDisk})
	h.run()
	h.leader()
	h.c.core.ledger.Reserve(scheduler.Reservation{Claim: "pod web on n1", Node: "n1", Bytes: 600 * mib, Deadline: time.Now().Add(time.Hour)})
	h.claim("c", "n1", nil)
	waittest.Until(t, "the node knows the claim", reported(n1, "c"), func() any { return n1.Reserved() })
}

func TestANodeLearnsThatAReservationEndedOfWhichItsAnswerWasLost(t *testing.T) {
	h := newHarness(t)
	n1 := h.node("n1", gib)
	h.class("carve", nil)
	n1.SetHooks(lvmdfake.Hooks{BeforeCreate: noDisk, AfterReservations: func() error { return status.Error(codes.Unavailable, "the answer is lost") }})
	h.run()
	h.claim("a", "n1", nil)
	waittest.Until(t, "the claim is reported to the node", reported(n1, "a"), func() any { return n1.Reserved() })
	h.deleteClaim("a")
	waittest.Until(t, "the node learns that nothing is reserved", reported(n1), func() any { return n1.Reserved() })
}

func TestWhatWasReportedToANodeIsForgottenWithIt(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	reporter := h.leader().reporter
	waittest.Until(t, "the node is looked at", func() bool { return reporter.Known() == 1 })
	h.net.Detach("n1")
	waittest.Until(t, "the node is away", func() bool { v, ok := h.c.core.Fleet.View("n1"); return ok && !v.Connected })
	h.c.core.Fleet.Forget("n1")
	waittest.Until(t, "the node is forgotten", func() bool { return reporter.Known() == 0 })
}
