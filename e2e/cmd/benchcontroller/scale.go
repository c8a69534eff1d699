package main

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// calmingTime is what the cluster gets before it counts as idle, for which it is watched
	// for idleTime.
	calmingTime = time.Minute
	idleTime    = time.Minute

	scaleReplicas = 2
	// otherFiles are what the process with the fake nodes has open beside their connections.
	otherFiles = 50
)

// scalePlan is what is measured of each number of nodes.
type scalePlan struct {
	nodes, bursts          []int
	volumes, held, classes int // held is how many of a node's volumes have a PersistentVolume at most
	full                   int // percentage of nodes
	createTime             time.Duration
	restarts               bool // of agents and replicas, and a node that hangs
}

// scale is what a number of nodes takes: of the leader first, and of the stand-by.
type scale struct {
	nodes      int
	memory     [2]float64      // resident bytes after the idle time
	cores      [2]float64      // processors used while idle
	connecting time.Duration   // from the nodes' start until both replicas know all and their capacity is published
	published  []time.Duration // from a change on a node to its capacity object, as another client sees it; sorted
	// bursts, churn, clones and hung are none where all nodes are full.
	bursts  []burst
	churn   *churn
	clones  *cloning
	hung    hung
	killed  takeOver      // after the leader's SIGKILL
	started time.Duration // from the start of a replica until it is ready
	stopped takeOver      // after the leader's SIGTERM
	// both is what followed when both replicas were killed, agents when all agents restarted.
	both, agents comeback
}

// perSecond is how many Pods got their node per second.
func (b burst) perSecond() float64 {
	if b.all == 0 {
		return 0
	}
	return float64(b.pods) / b.all.Seconds()
}

// measureScale puts each number of nodes on a cluster of its own. It returns what it has
// measured together with the error that ended it.
func measureScale(ctx context.Context, p plan, programs *programs, progress io.Writer) ([]scale, error) {
	var results []scale
	for _, nodes := range p.scale.nodes {
		if err := filesFor(nodes, scaleReplicas); err != nil {
			return results, err
		}
		fmt.Fprintf(progress, "%d nodes\n", nodes)
		err := withCluster(ctx, clusterOptions{
			programs: programs, progress: progress, nodes: nodes, nodeBytes: 1 << 40, createTime: p.scale.createTime, clientRate: highRate, replicas: scaleReplicas,
			classes: p.scale.classes, volumes: p.scale.volumes, held: min(p.scale.held, p.scale.volumes), full: p.scale.full, scheduler: p.scheduler,
		}, func(c *cluster) error {
			result := scale{nodes: c.nodes, connecting: c.connecting}
			err := c.measureScale(ctx, p, &result)
			results = append(results, result)
			return err
		})
		if err != nil {
			return results, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return results, nil
}

// filesFor returns an error if the process with the fake nodes may not have a connection for each of them to
// each replica.
func filesFor(nodes, replicas int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read how many files a process may open: %w", err)
	}
	if most := (limit.Max - min(limit.Max, otherFiles)) / uint64(replicas); uint64(nodes) > most {
		return fmt.Errorf("%d nodes: at most %d are possible, because a process may open %d files here (ulimit -Hn)", nodes, most, limit.Max)
	}
	return nil
}

// measureScale does one thing after the other. What ends it leaves the rest empty.
func (c *cluster) measureScale(ctx context.Context, p plan, s *scale) (err error) {
	fmt.Fprintf(c.progress, "all known and published after %v; %v of rest\n", short(s.connecting), calmingTime+idleTime)
	if err := c.idle(ctx, s); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "resident bytes %.0f, cores %.3f; nodes change\n", s.memory, s.cores)
	if s.published, err = c.change(ctx); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "published after %v, %v\n", millis(quantile(s.published, 50)), millis(quantile(s.published, 99)))
	if c.full < 100 {
		if err := c.load(ctx, p, s); err != nil {
			return err
		}
	}
	if !p.scale.restarts {
		return nil
	}
	return c.restarts(ctx, s)
}

// restarts measures what follows when agents and replicas end, and when a node hangs.
func (c *cluster) restarts(ctx context.Context, s *scale) (err error) {
	if s.agents, err = c.restartAgents(ctx); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "all agents restarted after %v, with %.0f writes of capacity; the leader is killed\n", short(s.agents.took), s.agents.writes)
	if s.killed, err = c.takeOver(ctx, 0, 1, syscall.SIGKILL); err != nil {
		return err
	}
	if s.started, err = c.replaceReplica(ctx, 0); err != nil {
		return err
	}
	if err := pause(ctx, quietTime); err != nil {
		return err
	}
	if s.stopped, err = c.takeOver(ctx, 1, 0, syscall.SIGTERM); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "taken over after %v and %v, ready after %v; both are killed\n", short(s.killed.leads), short(s.stopped.leads), short(s.started))
	if _, err := c.replaceReplica(ctx, 1); err != nil {
		return err
	}
	if s.both, err = c.killAll(ctx); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "all known again after %v, with %.0f writes of capacity\n", short(s.both.took), s.both.writes)
	if c.full == 100 {
		return nil
	}
	fmt.Fprintln(c.progress, "a node hangs")
	s.hung, err = c.hang(ctx)
	return err
}

// load measures Pods that come at once, and that come and go.
func (c *cluster) load(ctx context.Context, p plan, s *scale) error {
	for _, pods := range p.scale.bursts {
		fmt.Fprintf(c.progress, "%d Pods at once\n", pods)
		b, err := c.burst(ctx, pods, 0)
		if err != nil {
			return err
		}
		s.bursts = append(s.bursts, *b)
		fmt.Fprintf(c.progress, "%.1f Pods per second\n", b.perSecond())
	}
	fmt.Fprintf(c.progress, "%d clones at once\n", cloneCount)
	var err error
	if s.clones, err = c.cloneAtOnce(ctx); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "bound after %v\n", short(s.clones.all))
	if p.churnTime == 0 {
		return nil
	}
	load := churnPlan{pace: p.churnRate, time: p.churnTime, live: churnLive, setting: setting{clientRate: c.clientRate}}
	fmt.Fprintf(c.progress, "%v Pods per second for %v, each deleted after %v\n", load.pace, load.time, load.live)
	s.churn, err = c.churn(ctx, load, volumeBytes)
	return err
}

// idle measures both replicas while nothing happens.
func (c *cluster) idle(ctx context.Context, s *scale) error {
	if err := pause(ctx, calmingTime); err != nil {
		return err
	}
	var before [2]float64
	var err error
	for replica := range before {
		if before[replica], err = c.metric(ctx, replica, "process_cpu_seconds_total"); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := pause(ctx, idleTime); err != nil {
		return err
	}
	for replica := range before {
		after, err := c.metric(ctx, replica, "process_cpu_seconds_total")
		if err != nil {
			return err
		}
		s.cores[replica] = (after - before[replica]) / time.Since(begin).Seconds()
		if s.memory[replica], err = c.metric(ctx, replica, "process_resident_memory_bytes"); err != nil {
			return err
		}
	}
	return nil
}
