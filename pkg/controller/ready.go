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
	// fleetTimeout is the time that nodes get to report before a replica is ready without
	// them. Agents that lost a replica look for a new one within seconds, others within
	// minutes, and a node may be down: a rolling update waits for neither. But it must not
	// remove a replica before DNS answers, cached for up to half a minute, name the new one.
	fleetTimeout = 30 * time.Second
	// The wait is longer while nodes still report, as in a fleet of thousands. It ends when no
	// probe has found more of them for fleetPause (two periods of the readiness probe), or
	// after fleetBound: a fifth of the Deployment's progressDeadlineSeconds.
	fleetPause = 10 * time.Second
	fleetBound = 2 * time.Minute
)

// readiness becomes true once the replica knows its fleet, and stays so when nodes join or
// leave. Safe for concurrent use.
type readiness struct {
	mu sync.Mutex
	// opened is the time at which the uplink opened. known is set once all nodes have reported
	// or had their time.
	opened time.Time
	known  bool
	// fewest is the minimum of unreported nodes at a probe, fell the time of its last
	// decrease; zero before any.
	fewest int
	fell   time.Time
}

// look records a probe and reports whether to wait longer. The caller holds r.mu.
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

func (r *readiness) open(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = now
}

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

// unreportedNodes expects nodes in the cluster for which a replica published capacity. A
// refused report counts: a better one need not come.
func unreportedNodes(c *cluster.Cluster) (expected, unreported int) {
	seen := map[string]bool{}
	for _, object := range cluster.List(c.Capacities) {
		name := capacity.TopologyNode(object) // empty for a kind of node
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

func (c *Controller) openUplink() {
	c.readiness.open(c.core.Now())
	c.listening.Store(true)
}

// Ready returns an error until the replica can take over: its view of the cluster is complete,
// its uplink open, and the nodes have reported or had their time. It is cheap, and safe for
// concurrent use.
func (c *Controller) Ready(context.Context) error {
	switch {
	case !c.core.Synced():
		return errors.New("the view of the cluster is not complete yet")
	case !c.listening.Load():
		return errors.New("the uplink is not open yet")
	}
	return c.readiness.check(c.core.Cluster)
}

// Healthy returns an error if the replica must be restarted: it still acts two minutes after
// it lost its lease. It is cheap, and safe for concurrent use.
func (c *Controller) Healthy(context.Context) error { return c.lease.healthy() }
