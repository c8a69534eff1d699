package main

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/carve"
)

// quietTime is how long capacity is watched after all nodes are known again, and how long both
// replicas get to take part in the election.
const quietTime = 5 * time.Second

// comeback is how the nodes were known again.
type comeback struct {
	took time.Duration
	// writes is how often capacity was written meanwhile. None of it had changed.
	writes float64
}

// takeOver is what followed when the leader was ended by a signal.
type takeOver struct {
	leads time.Duration // until the other replica led
	known time.Duration // until all nodes had heard of it
}

// takeOver ends the leader, and waits until all nodes have heard that the other replica leads.
func (c *cluster) takeOver(ctx context.Context, leader, next int, signal syscall.Signal) (t takeOver, err error) {
	if err := c.leads(ctx, leader); err != nil {
		return t, err
	}
	begin := time.Now()
	if err := c.controllers[leader].Signal(signal); err != nil {
		return t, fmt.Errorf("end the leader: %w", err)
	}
	err = carve.Until(ctx, waitTimeout, "the other replica leads", func(ctx context.Context) error { return c.leads(ctx, next) })
	if err != nil {
		return t, err
	}
	t.leads = time.Since(begin)
	err = carve.Until(ctx, waitTimeout, "all nodes have heard that the other replica leads", func(ctx context.Context) error {
		left, err := c.metric(ctx, next, "carve_controller_uninformed_nodes")
		if err == nil && left > 0 {
			err = fmt.Errorf("%v have not", left)
		}
		return err
	})
	t.known = time.Since(begin)
	return t, err
}

// replaceReplica starts a replica that has ended, and returns how long it took to be ready.
func (c *cluster) replaceReplica(ctx context.Context, replica int) (time.Duration, error) {
	begin := time.Now()
	if err := c.startReplica(ctx, replica); err != nil {
		return 0, err
	}
	err := carve.Until(ctx, c.fleetTimeout(), fmt.Sprintf("replica %d is ready", replica), func(ctx context.Context) error { return c.ready(ctx, replica) })
	return time.Since(begin), err
}

// killAll kills all replicas and starts them again at once.
func (c *cluster) killAll(ctx context.Context) (comeback, error) {
	return c.disturb(ctx, func() error {
		for replica := range c.controllers {
			if err := c.controllers[replica].Kill(); err != nil {
				return fmt.Errorf("kill replica %d: %w", replica, err)
			}
		}
		for replica := range c.controllers {
			if err := c.startReplica(ctx, replica); err != nil {
				return err
			}
		}
		return carve.Until(ctx, waitTimeout, "a replica leads", func(ctx context.Context) error {
			if c.leads(ctx, 0) == nil {
				return nil
			}
			return c.leads(ctx, 1)
		})
	})
}

// restartAgents restarts all nodes' agents, one after the other.
func (c *cluster) restartAgents(ctx context.Context) (comeback, error) {
	return c.disturb(ctx, func() error {
		var nothing any
		return c.askFleet(ctx, http.MethodPost, "/restart", &nothing)
	})
}

// disturb does what cuts nodes off, waits until all are known again, and watches what was written.
func (c *cluster) disturb(ctx context.Context, do func() error) (comeback, error) {
	before, err := c.allWrites(ctx)
	if err != nil {
		return comeback{}, err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return comeback{}, err
	}
	if err := c.allConnected(ctx); err != nil {
		return comeback{}, err
	}
	b := comeback{took: time.Since(begin)}
	if err := pause(ctx, quietTime); err != nil {
		return comeback{}, err
	}
	after, err := c.allWrites(ctx)
	b.writes = after["csistoragecapacities"] - before["csistoragecapacities"]
	return b, err
}

// pause waits, unless ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
