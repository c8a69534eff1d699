package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

const (
	// fleetTimeout is how long after its uplink opened a replica waits for the nodes before it
	// is ready without them. Agents that have lost a replica look for a new one within seconds; those that have not do
	// so within minutes, and a node may be down: neither holds up a rolling update. But it takes a replica away only when
	// DNS answers, which a cache may keep for half a minute, have the new one.
	fleetTimeout = 30 * time.Second
	// While nodes still report, it is not over: a fleet of thousands takes longer. It is when no probe has found
	// more of them for fleetPause, which is two periods of the readiness probe, or after fleetBound in all: a
	// fifth of the time after which the Deployment's rolling update counts as failed (progressDeadlineSeconds).
	fleetPause = 10 * time.Second
	fleetBound = 2 * time.Minute
)

// readiness is whether a replica knows its fleet: once it does, it stays so, and a node that
// joins later, or leaves, is no reason to be not ready. Its methods may be called concurrently.
type readiness struct {
	mu sync.Mutex
	// opened is when the uplink was opened, known whether the nodes have reported since, or have
	// had their time for it.
	opened time.Time
	known  bool
	// fewest is how many nodes had not reported at a probe at least, fell when a probe found fewer than
	// those before: zero where none has yet.
	fewest int
	fell   time.Time
}

// look notes what a probe found, and reports whether the replica goes on waiting for nodes. The caller holds r.mu.
func (r *readiness) look(unreported int, now time.Time) bool {
	if r.fewest == 0 {
		r.fewest = unreported
	}
	if unreported < r.fewest {
		r.fewest, r.fell = unreported, now
	}
	waited := now.Sub(r.opened)
	return unreported > 0 && (waited < fleetTimeout || waited < fleetBound && now.Sub(r.fell) < fleetPause)
}

// open notes that the uplink is open.
func (r *readiness) open(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = now
}

// check returns an error while nodes that are expected have not reported. It looks at them until
// it has returned nil once: probes after that cost nothing.
func (r *readiness) check(c *cluster.Cluster) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known {
		return nil
	}
	expected, unreported := unreportedNodes(c)
	if r.look(unreported, c.Now()) {
		return fmt.Errorf("%d of %d nodes have not reported yet", unreported, expected)
	}
	r.known = true
	if unreported > 0 {
		c.Log.Warn("ready without all nodes", "unreported", unreported, "expected", expected, "after", c.Now().Sub(r.opened))
	}
	return nil
}

// unreportedNodes returns how many nodes a replica expects reports of, which are those that some
// replica published capacity for and that are in the cluster, and how many of them have not
// reported. A report that was refused counts as one: a better one need not come.
func unreportedNodes(c *cluster.Cluster) (expected, unreported int) {
	seen := map[string]bool{}
	for _, object := range cluster.List(c.Capacities) {
		name := capacity.TopologyNode(object) // empty where the object is about a kind of node
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		node, err := c.NodeLister.Get(name)
		if err != nil || cluster.OutOfService(node) {
			continue
		}
		expected++
		if view, ok := c.Fleet.View(name); !ok || !view.Reported() && view.Refused == "" {
			unreported++
		}
	}
	return expected, unreported
}

// openUplink notes that the uplink is open.
func (c *Controller) openUplink() {
	c.readiness.open(c.core.Now())
	c.listening.Store(true)
}

// Ready returns why the replica should not be relied on to take over yet, or nil: its view of the
// cluster is complete, its uplink open, and the nodes have reported to it, or have had their time
// to do so. It may be called concurrently, and costs little.
func (c *Controller) Ready(context.Context) error {
	switch {
	case !c.core.Synced():
		return errors.New("the view of the cluster is not complete yet")
	case !c.listening.Load():
		return errors.New("the uplink is not open yet")
	}
	return c.readiness.check(c.core.Cluster)
}

// Healthy returns an error if the replica should be restarted: it still acts two minutes after it lost
// its lease. It may be called concurrently, and costs little.
func (c *Controller) Healthy(context.Context) error { return c.lease.healthy() }
