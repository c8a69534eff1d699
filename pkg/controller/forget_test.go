package controller

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAReportIsKeptOfANodeThatReconnectsWhileItIsForgotten(t *testing.T) {
	h := newHarness(t)
	t.Cleanup(func() { h.c.core.fleet.Close(); h.net.Close() })
	node := fakelvmd.New("n1", fakelvmd.Class{Name: "local", Default: true, Bytes: gib})
	h.attach(node, "n1")
	h.net.Detach("n1")
	waittest.Until(t, "n1 is disconnected", func() bool {
		view, _ := h.c.core.fleet.View("n1")
		return !view.Connected
	})
	asked := false
	h.client.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked = true
		h.attach(node, "n1")
		return true, nil, apierrors.NewNotFound(v1.Resource("nodes"), "n1")
	})
	h.c.forgetNodes(t.Context())
	if !asked {
		t.Fatal("the API server was not asked for the node")
	}
	waittest.Until(t, "the room of the node that reconnected is known", func() bool {
		_, known := h.c.core.ledger.Room("n1", "local")
		return known
	})
}

func TestThePublisherForgetsWhatIsGone(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	p := h.leader().publisher
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	h.cutOff("n1")
	h.deleteNode("n1")
	remembered := func() any {
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Sprintf("keys %v, written %v, in flight %v, risen %v", p.keys, p.written, p.gone, p.risen)
	}
	waittest.Until(t, "the publisher remembers nothing of a node that is gone", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.keys)+len(p.written)+len(p.gone)+len(p.risen) == 0
	}, remembered)
}

func TestTheAuditorForgetsVolumesThatAreGone(t *testing.T) {
	h := newHarness(t)
	a := newAuditor(h.c.core, false, time.Hour, func(string) bool { return false })
	sick := &lvmdv1.Volume{Id: "v1", Owner: &lvmdv1.Owner{PodUid: "pod"}, Conditions: []*lvmdv1.Condition{{Type: "Degraded", Message: "a disk is gone"}}}
	inline := &lvmdv1.Volume{Id: "v2", EmptiedAt: timestamppb.New(a.began), Owner: &lvmdv1.Owner{PodUid: "pod"}}
	with := func(volumes ...*lvmdv1.Volume) *fleet.View {
		view := &fleet.View{Node: "n1", Connected: true, Epoch: "e", Volumes: map[string]*lvmdv1.Volume{}}
		for _, vol := range volumes {
			view.Volumes[vol.GetId()] = vol
		}
		return view
	}
	away := with(sick, inline)
	away.Connected = false
	for _, step := range []struct {
		what  string
		views []*fleet.View
		want  int
	}{
		{"there are two volumes to tell of", []*fleet.View{with(sick, inline)}, 1},
		{"their node is away", []*fleet.View{away}, 1},
		{"they are there again", []*fleet.View{with(sick, inline)}, 1},
		{"they are gone", []*fleet.View{with()}, 0},
		{"they are there once more", []*fleet.View{with(sick, inline)}, 1},
		{"their node is gone", nil, 0},
	} {
		a.passOver(t.Context(), step.views)
		if len(a.ailing.told) != step.want || len(a.emptied) != step.want {
			t.Errorf("%s: %d unhealthy and %d emptied remembered, want %d of each: %v, %v",
				step.what, len(a.ailing.told), len(a.emptied), step.want, a.ailing.told, a.emptied)
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
		h.c.core.losses.mu.Lock()
		noted := len(h.c.core.losses.since)
		h.c.core.losses.mu.Unlock()
		d.waiting.mu.Lock()
		defer d.waiting.mu.Unlock()
		return noted+len(d.waiting.byNode) == 0
	}, func() any {
		h.c.core.losses.mu.Lock()
		defer h.c.core.losses.mu.Unlock()
		d.waiting.mu.Lock()
		defer d.waiting.mu.Unlock()
		return fmt.Sprintf("lost %v, waiting %v", h.c.core.losses.since, d.waiting.byNode)
	})
}

func TestADeletedClaimIsForgottenWithItsVolume(t *testing.T) {
	h := newHarness(t)
	d := newDeleter(h.c.core, true)
	d.claimGone["pvc-1"] = types.UID("claim")
	must.Succeed(t, d.sync(t.Context(), "pvc-1"))
	if len(d.claimGone) != 0 {
		t.Errorf("remembered of a volume that is gone: %v", d.claimGone)
	}
}
