package controller

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAReportIsKeptOfANodeThatReconnectsWhileItIsForgotten(t *testing.T) {
	h := newHarness(t)
	t.Cleanup(func() { h.c.core.Fleet.Close(); h.net.Close() })
	node := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	h.attach(node, "n1")
	h.net.Detach("n1")
	waittest.Until(t, "n1 is disconnected", func() bool {
		view, _ := h.c.core.Fleet.View("n1")
		return !view.Connected
	})
	asked := false
	h.react("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked = true
		h.attach(node, "n1")
		return true, nil, apierrors.NewNotFound(v1.Resource("nodes"), "n1")
	})
	h.c.forgetNodes(t.Context())
	if !asked {
		t.Fatal("the API server was not asked for the node")
	}
	waittest.Until(t, "the free space of the node that reconnected is known", func() bool {
		_, known := h.c.core.ledger.FreeSpace("n1", "local")
		return known
	})
}

// A former leader holds a node back that never connected to it; only a leader's publisher
// checks such nodes.
func TestANodeThatNeverConnectedIsForgottenWhereNoneLeads(t *testing.T) {
	h := newHarness(t)
	t.Cleanup(func() { h.c.core.Fleet.Close(); h.net.Close() })
	h.node("n1", 0)
	h.c.core.available.Grace = time.Millisecond
	held := func() []string { return h.c.core.available.HeldBack(cluster.CauseAway) }
	h.c.core.available.NoteAway("n1")
	waittest.Until(t, "n1 is held back", func() bool { return len(held()) == 1 })
	if h.c.forgetNodes(t.Context()); len(held()) != 1 {
		t.Error("a node that is there is not held back any more")
	}
	h.deleteNode("n1")
	if h.c.forgetNodes(t.Context()); len(held()) != 0 {
		t.Errorf("held back are %v, which are gone", held())
	}
	h.c.core.available.Failed("n1", "local", h.c.core.Now(), true)
	if h.c.forgetNodes(t.Context()); len(h.c.core.available.Nodes()) != 0 {
		t.Errorf("failures are remembered of %v, which are gone", h.c.core.available.Nodes())
	}
}

// With the test's clock, the increase is delayed for as long as the publisher remembers it.
func TestThePublisherForgetsWhatIsGone(t *testing.T) {
	var clock testClock
	clock.stop()
	h := newHarness(t, clock.set)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	p := h.leader().publisher
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	node.Resize("local", 2*gib)
	waittest.Until(t, "the increase waits", func() bool { return len(p.Waiting()) == 1 })
	h.cutOff("n1")
	h.deleteNode("n1")
	waittest.Until(t, "the publisher remembers nothing of a node that is gone", func() bool { return len(p.Waiting()) == 0 })
}

func TestTheAuditorForgetsVolumesThatAreGone(t *testing.T) {
	h := newHarness(t)
	a := newAuditor(h.c.core, false, time.Hour, func(string) bool { return false })
	unhealthy := &lvmdv1.Volume{Id: "v1", Owner: &lvmdv1.Owner{PodUid: "pod"}, Conditions: []*lvmdv1.Condition{{Type: "Degraded", Message: "a disk is gone"}}}
	inline := &lvmdv1.Volume{Id: "v2", EmptiedAt: timestamppb.New(a.Since), Owner: &lvmdv1.Owner{PodUid: "pod"}}
	with := func(volumes ...*lvmdv1.Volume) *fleet.View {
		view := &fleet.View{Node: "n1", Connected: true, Epoch: "e", Volumes: map[string]*lvmdv1.Volume{}}
		for _, vol := range volumes {
			view.Volumes[vol.GetId()] = vol
		}
		return view
	}
	away := with(unhealthy, inline)
	away.Connected = false
	for _, step := range []struct {
		what  string
		views []*fleet.View
		want  int
	}{
		{"there are two volumes to report", []*fleet.View{with(unhealthy, inline)}, 1},
		{"their node is away", []*fleet.View{away}, 1},
		{"they are there again", []*fleet.View{with(unhealthy, inline)}, 1},
		{"they are gone", []*fleet.View{with()}, 0},
		{"they are there once more", []*fleet.View{with(unhealthy, inline)}, 1},
		{"their node is gone", nil, 0},
	} {
		a.PassWith(t.Context(), step.views)
		if unhealthy, lost := a.Remembered(); unhealthy != step.want || lost != step.want {
			t.Errorf("%s: %d unhealthy and %d without their data remembered, want %d of each", step.what, unhealthy, lost, step.want)
		}
	}
	if events := h.warnings(); len(events) != 4 {
		t.Errorf("events %q, want one for each volume and time that it appears", events)
	}
}

func TestLossesOfNodesAreForgottenWhenNoVolumeIsLeftOnThem(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.cutOff("n1")
	h.deleteNode("n1")
	h.deleteClaim("c")
	h.released("pvc-uid-c")
	waittest.Until(t, "the volume is given up with its node", func() bool { return h.volumes() == 0 })
	d := h.leader().deleter
	waittest.Until(t, "nothing is remembered of the node", func() bool {
		noted := len(h.c.core.Losses.Nodes())
		return noted+len(d.Waiting()) == 0
	}, func() any {
		return fmt.Sprintf("lost %v, waiting %v", h.c.core.Losses.Nodes(), d.Waiting())
	})
}
