package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
)

// bulk returns conditions of about kib KiB.
func bulk(kib int) []*lvmdv1.Condition {
	all := make([]*lvmdv1.Condition, kib)
	for i := range all {
		all[i] = &lvmdv1.Condition{Type: "Degraded", Message: strings.Repeat("x", 1000)}
	}
	return all
}

func pretend(s *lvmdfake.Server, volumes int) {
	for i := range volumes {
		s.Put(&lvmdv1.Volume{Id: fmt.Sprintf("v%d", i), DeviceClass: "local"})
	}
}

func TestTheReportOfANodeThatHasMoreThanANodeCanHoldIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		pretend func(*lvmdfake.Server)
		want    string
	}{
		"volumes": {func(s *lvmdfake.Server) { pretend(s, fleet.MaxVolumes+1) }, "more volumes than the 20000"},
		"bytes in one message": {func(s *lvmdfake.Server) {
			s.Put(&lvmdv1.Volume{Id: "v", Name: strings.Repeat("x", 17<<20)})
		}, "more bytes in one message than"},
		"fields, which take much more memory than they are long": {func(s *lvmdfake.Server) {
			s.Put(&lvmdv1.Volume{Id: "v", Conditions: make([]*lvmdv1.Condition, 50*fleet.MaxVolumes)})
		}, "more fields than"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.node(t, "honest")
			s := lvmdfake.New("n", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
			test.pretend(s)
			h.net.Attach(s)
			view := h.eventually(t, "n", func(v *fleet.View) bool { return v.Refused != "" || v.Reported() })
			if !strings.Contains(view.Refused, test.want) || view.Connected || view.Reported() {
				t.Errorf("refused %q, connected %t, reported %t with %d volumes; want it refused for %q",
					view.Refused, view.Connected, view.Reported(), len(view.Volumes), test.want)
			}
			if honest, _ := h.View("honest"); !honest.Connected {
				t.Error("another node is not connected")
			}
		})
	}
}

func TestANodeThatCameToReportTooMuchIsTakenInAgainWhenItReportsLess(t *testing.T) {
	h := newHarness(t)
	s := lvmdfake.New("n", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	pretend(s, fleet.MaxVolumes)
	h.net.Attach(s)
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Connected && len(v.Volumes) == fleet.MaxVolumes })
	s.Put(&lvmdv1.Volume{Id: "one-too-many", DeviceClass: "local"})
	view := h.eventually(t, "n", func(v *fleet.View) bool { return v.Refused != "" })
	if view.Connected || len(view.Volumes) != fleet.MaxVolumes {
		t.Errorf("connected %t with %d volumes", view.Connected, len(view.Volumes))
	}
	must.Succeed(t, h.DeleteVolumeByID(testContext(t), "n", "one-too-many"))
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Connected && v.Refused == "" && len(v.Volumes) == fleet.MaxVolumes })
}

// The limit is on the total, however the node splits it into messages.
func TestWhatANodeReportsIsBoundedInAllThatItReported(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	for i := range 17 {
		s.Put(&lvmdv1.Volume{Id: fmt.Sprintf("v%d", i), Conditions: bulk(1 << 10)})
	}
	view := h.eventually(t, "n", func(v *fleet.View) bool { return v.Refused != "" || len(v.Volumes) == 17 })
	if view.Refused == "" {
		t.Errorf("%d MiB of volumes were taken in", len(view.Volumes))
	}
	// Small replacements free the budget.
	for i := range 17 {
		s.Put(&lvmdv1.Volume{Id: fmt.Sprintf("v%d", i), DeviceClass: "local"})
	}
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Connected && len(v.Volumes) == 17 })
	for i := range 40 {
		s.Put(&lvmdv1.Volume{Id: "again", Name: fmt.Sprint(i), Conditions: bulk(1 << 10)})
	}
	h.eventually(t, "n", func(v *fleet.View) bool {
		return v.Connected && v.Refused == "" && v.Volumes["again"].GetName() == "39"
	})
}

// A node can be asked many things at once.
func TestAnAnswerThatIsTooLargeIsRefusedAndTheCallMayHaveHappened(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	s.Put(&lvmdv1.Volume{Id: "v", Name: "large", Conditions: make([]*lvmdv1.Condition, 50_000)})
	vol, err := h.GetVolumeByName(testContext(t), "n", "large")
	if status.Code(err) != codes.ResourceExhausted || !fleet.MayHaveHappened(err) {
		t.Errorf("an answer of 100 kB: %d conditions, %v", len(vol.GetConditions()), err)
	}
	s.Put(&lvmdv1.Volume{Id: "w", Name: "small", DeviceClass: "local"})
	must.Get(h.GetVolumeByName(testContext(t), "n", "small"))(t)
}

// A new leader announces itself by asking every node for its classes.
func TestTheAnswerToANewLeaderIsNotDecodedAndALargeOneNotRead(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	s.SetClass("local", gib, make([]*lvmdv1.Condition, 50_000)...)
	must.Succeed(t, h.Announce(testContext(t), "n"))
	// This is small enough to read, but has too many parts to decode.
	s.SetClass("local", gib, make([]*lvmdv1.Condition, 10_000)...)
	must.Succeed(t, h.Announce(testContext(t), "n"))
}

func TestAnAnswerThatHasTooManyPartsIsRefusedAndTheCallMayHaveHappened(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	// Two bytes each: a third of maxAnswerBytes.
	s.Put(&lvmdv1.Volume{Id: "v", Name: "large", Conditions: make([]*lvmdv1.Condition, 10_000)})
	vol, err := h.GetVolumeByName(testContext(t), "n", "large")
	if err == nil || !fleet.MayHaveHappened(err) || !strings.Contains(err.Error(), "more than the 1000 that are allowed") {
		t.Errorf("an answer of 10,000 parts: %d conditions, %v", len(vol.GetConditions()), err)
	}
}

func TestTextsOfANodeAreCutToWhatMayBeShown(t *testing.T) {
	h := newHarness(t)
	long := "x" + strings.Repeat("ä", 1000)
	s := h.node(t, "n")
	s.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		return apierror.DeviceMissing("%s", long)
	}})
	err := h.DeleteVolumeByID(testContext(t), "n", "v")
	if text := fleet.Message(err); len(text) > 1100 || !strings.HasSuffix(text, "ä …") || fleet.Reason(err) != names.ReasonDeviceMissing {
		t.Errorf("an error of %d bytes with the reason %q that ends in %q", len(text), fleet.Reason(err), text[max(len(text)-10, 0):])
	}
	condition := func() []*lvmdv1.Condition { return []*lvmdv1.Condition{{Type: "Unhealthy", Message: long}} }
	s.Put(&lvmdv1.Volume{Id: "v", DeviceClass: "local", Conditions: condition(), Found: condition()})
	s.SetClass("local", gib, condition()...)
	view := h.eventually(t, "n", func(v *fleet.View) bool {
		return v.Volumes["v"] != nil && len(v.Classes["local"].GetConditions()) > 0
	})
	for what, conditions := range map[string][]*lvmdv1.Condition{
		"lvmd's of a volume": view.Volumes["v"].GetConditions(), "the node plugin's of a volume": view.Volumes["v"].GetFound(),
		"of a class": view.Classes["local"].GetConditions(),
	} {
		if text := conditions[0].GetMessage(); len(text) > 1100 || !strings.HasSuffix(text, "ä …") {
			t.Errorf("the condition %s has %d bytes", what, len(text))
		}
	}
}

// By default, gRPC reads a status of 16 MiB.
func TestAStatusThatIsTooLargeIsNotRead(t *testing.T) {
	h := newHarness(t)
	h.node(t, "n").SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		return apierror.DeviceMissing("%s", strings.Repeat("x", 1<<20))
	}})
	if err := h.DeleteVolumeByID(testContext(t), "n", "v"); err == nil || fleet.Reason(err) != "" || !fleet.MayHaveHappened(err) {
		t.Errorf("a status of 1 MiB was taken in: %.100v", err)
	}
}

func TestANodesReportsAreTakenInSoManyPerSecond(t *testing.T) {
	h := newHarness(t)
	s := h.node(t, "n")
	begin := time.Now()
	const reports = 500
	for i := range reports {
		s.Put(&lvmdv1.Volume{Id: "v", Name: fmt.Sprint(i), DeviceClass: "local"})
	}
	h.eventually(t, "n", func(v *fleet.View) bool { return v.Volumes["v"].GetName() == fmt.Sprint(reports-1) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if most := 210 + 100*time.Since(begin).Seconds(); float64(len(h.views["n"])) > most {
		t.Errorf("%d reports were taken in in %v, want at most %.0f", len(h.views["n"]), time.Since(begin), most)
	}
}
