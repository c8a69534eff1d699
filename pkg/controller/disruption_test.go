package controller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/waittest"
)

// restarted leads after all replicas were away: no node has connected yet.
type restarted struct {
	*harness
	nodes  []string
	log    logtest.Recorder
	now    atomic.Int64 // nanoseconds after its start
	writes atomic.Int32 // of capacity objects and Nodes
}

func newRestarted(t *testing.T) *restarted {
	t.Helper()
	r := &restarted{}
	conditions := func(c *Controller) { c.o.NodeConditions = true }
	before := newHarness(t, conditions)
	for i := range 6 {
		r.nodes = append(r.nodes, fmt.Sprintf("n%d", i))
		before.node(r.nodes[i], gib)
	}
	before.class("carve", nil)
	before.run()
	for _, node := range r.nodes {
		waittest.Until(t, node+" is published", before.capacityIs(node, gib))
		waittest.Until(t, node+" has a condition", func() bool { _, local := before.nodeConditions(node); return local.Status == v1.ConditionTrue })
	}
	before.stop()
	start := time.Now()
	r.harness = newHarnessOn(t, before.client, conditions, func(c *Controller) {
		c.o.Log = r.log.Logger()
		c.core.Now = func() time.Time { return start.Add(time.Duration(r.now.Load())) }
		c.core.available = c.newAvailability()
		c.core.available.Grace = 2 * time.Second // time for the publisher to check three nodes
	})
	for _, resource := range []string{"csistoragecapacities", "nodes"} {
		r.react("*", resource, func(action k8stesting.Action) (bool, runtime.Object, error) {
			if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
				r.writes.Add(1)
			}
			return false, nil, nil
		})
	}
	r.run()
	waittest.Until(t, "the nodes' grace is over", func() bool {
		return r.logged("node is not connected, and is not held back while many come back") == len(r.nodes)
	})
	return r
}

func (r *restarted) logged(message string) int {
	return len(r.log.Find(func(line logtest.Record) bool { return line.Message == message }))
}

func (r *restarted) back(nodes ...string) {
	r.t.Helper()
	for _, node := range nodes {
		r.attach(lvmdfake.New(node, lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), node)
		waittest.Until(r.t, node+" is published", func() bool {
			return r.leader().publisher.Shown(r.t.Context(), node) || r.writes.Load() > 0
		})
	}
}

func (r *restarted) wantDisruptions(began, ended int) {
	r.t.Helper()
	waittest.Until(r.t, fmt.Sprintf("%d disruptions have begun, and %d ended", began, ended), func() bool {
		return r.logged("many nodes are away at once, none is held back while they come back") == began &&
			r.logged("nodes that are away are held back again") == ended
	})
}

func TestARestartOfTheControllerWritesNoCapacity(t *testing.T) {
	t.Parallel()
	r := newRestarted(t)
	r.wantDisruptions(1, 0)
	r.back(r.nodes...)
	r.wantDisruptions(1, 1)
	if n := r.writes.Load(); n != 0 {
		t.Errorf("capacity and Nodes were written %d times while the nodes connected again, want none", n)
	}
}

func TestNodesThatAreDownAreHeldBackWhenNoOthersComeBackAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRestarted(t)
	r.back(r.nodes[:4]...)
	if n := r.writes.Load(); n != 0 {
		t.Errorf("capacity and Nodes were written %d times while nodes connected again, want none", n)
	}
	r.now.Add(int64(r.c.core.available.Grace))
	for _, node := range r.nodes[4:] {
		waittest.Until(t, "no capacity is published for "+node, r.capacityIs(node, 0))
		waittest.Until(t, "the condition of "+node+" is unknown", func() bool { _, local := r.nodeConditions(node); return local.Status == v1.ConditionUnknown })
	}
	r.wantDisruptions(1, 1)
	if n, held := r.writes.Load(), len(r.c.core.available.HeldBack(cluster.CauseAway)); n != 4 || held != 2 {
		t.Errorf("capacity and Nodes were written %d times, and %v nodes are held back; want 4 and 2", n, held)
	}
}
