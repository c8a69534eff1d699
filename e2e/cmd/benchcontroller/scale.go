package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	// scaleVolumes is how many volumes every node has from the beginning.
	scaleVolumes = 20
	// calmingTime is what the cluster gets before it counts as idle, for which it is watched
	// for idleTime: until then the controller-manager has seen that the nodes send no heartbeats.
	calmingTime = time.Minute
	idleTime    = time.Minute
	// changedNodes is how many nodes change one after the other, at most.
	changedNodes = 200
)

// scale is what a number of nodes takes: of the leader first, and of the stand-by.
type scale struct {
	nodes      int
	memory     [2]float64      // resident bytes after the idle time
	cores      [2]float64      // processors used while idle
	connecting time.Duration   // from the nodes' start until both replicas know all and their capacity is published
	published  []time.Duration // from a change on a node to its capacity object, as another client sees it; sorted
	burst      burst
	killed     time.Duration // from the leader's SIGKILL until the other leads
	started    time.Duration // from the start of a replica until it is ready
	stopped    time.Duration // from the leader's SIGTERM until the other leads
}

func (s scale) published50() string { return s.publishedAt(50) }
func (s scale) published99() string { return s.publishedAt(99) }

func (s scale) publishedAt(percent int) string {
	return quantile(s.published, percent).Round(time.Millisecond).String()
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
	for _, nodes := range p.scale {
		fmt.Fprintf(progress, "%d nodes with %d volumes each\n", nodes, scaleVolumes)
		err := withCluster(ctx, clusterOptions{
			programs: programs, progress: progress, nodes: nodes, nodeBytes: 1 << 40, clientRate: highRate, replicas: 2, volumes: scaleVolumes,
		}, func(c *cluster) error {
			result, err := c.measureScale(ctx, p)
			if err == nil {
				results = append(results, *result)
			}
			return err
		})
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

func (c *cluster) measureScale(ctx context.Context, p plan) (*scale, error) {
	s := &scale{nodes: c.nodes, connecting: c.connecting}
	fmt.Fprintf(c.progress, "all known and published after %v; %v of rest\n", short(s.connecting), calmingTime+idleTime)
	if err := c.idle(ctx, s); err != nil {
		return nil, err
	}
	fmt.Fprintf(c.progress, "resident bytes %.0f, cores %.3f; nodes change\n", s.memory, s.cores)
	var err error
	if s.published, err = c.change(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(c.progress, "published after %v, %v; %d Pods at once\n", s.published50(), s.published99(), p.burst)
	b, err := c.burst(ctx, p.burst, 0)
	if err != nil {
		return nil, err
	}
	s.burst = *b
	fmt.Fprintf(c.progress, "%.1f Pods per second; the leader is killed\n", b.perSecond())
	if s.killed, err = c.takeOver(ctx, 0, 1, syscall.SIGKILL); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := c.startReplica(0); err != nil {
		return nil, err
	}
	if err := carve.Until(ctx, waitTimeout, "the replica is ready", func(ctx context.Context) error { return c.ready(ctx, 0) }); err != nil {
		return nil, err
	}
	s.started = time.Since(begin)
	time.Sleep(5 * time.Second) // both have taken part in the election again
	s.stopped, err = c.takeOver(ctx, 1, 0, syscall.SIGTERM)
	fmt.Fprintf(c.progress, "taken over after %v and %v, ready after %v\n", short(s.killed), short(s.stopped), short(s.started))
	return s, err
}

// idle measures both replicas while nothing happens.
func (c *cluster) idle(ctx context.Context, s *scale) error {
	select {
	case <-time.After(calmingTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	var before [2]float64
	var err error
	for replica := range before {
		if before[replica], err = c.metric(ctx, replica, "process_cpu_seconds_total"); err != nil {
			return err
		}
	}
	begin := time.Now()
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return ctx.Err()
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

// change has nodes change, and returns how long each change took to be published, sorted.
func (c *cluster) change(ctx context.Context) ([]time.Duration, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(carveNamespace))
	informer := factory.Storage().V1().CSIStorageCapacities().Informer()
	var mu sync.Mutex
	seen := map[string]time.Time{}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
		before, okBefore := old.(*storagev1.CSIStorageCapacity)
		after, okAfter := now.(*storagev1.CSIStorageCapacity)
		if !okBefore || !okAfter || before.Capacity.Cmp(*after.Capacity) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if node := after.NodeTopology.MatchLabels[topologyKey]; seen[node].IsZero() {
			seen[node] = time.Now()
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("follow capacity: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	factory.Start(watching.Done())
	factory.WaitForCacheSync(watching.Done())
	if err := c.fleet.Signal(syscall.SIGUSR1); err != nil {
		return nil, fmt.Errorf("have nodes change: %w", err)
	}
	var took []time.Duration
	err = carve.Until(ctx, waitTimeout, "all changes are published", func(context.Context) error {
		changed, err := c.changes()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		took = nil
		for node, at := range changed {
			if !seen[node].IsZero() {
				took = append(took, seen[node].Sub(at))
			}
		}
		if want := min(c.nodes, changedNodes); len(took) < want {
			return fmt.Errorf("%d of %d", len(took), want)
		}
		return nil
	})
	slices.Sort(took)
	return took, err
}

// changes returns when the nodes that changed did so.
func (c *cluster) changes() (map[string]time.Time, error) {
	text, err := os.ReadFile(c.changesFile())
	if err != nil {
		return nil, fmt.Errorf("read the changes: %w", err)
	}
	changed := map[string]time.Time{}
	for line := range strings.Lines(string(text)) {
		node, at, complete := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !complete || !strings.HasSuffix(line, "\n") {
			continue // it is being written
		}
		nanoseconds, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the changes: %w", err)
		}
		changed[node] = time.Unix(0, nanoseconds)
	}
	return changed, nil
}

// takeOver ends the leader by a signal, and returns when the other replica leads.
func (c *cluster) takeOver(ctx context.Context, leader, next int, signal syscall.Signal) (time.Duration, error) {
	if err := c.leads(ctx, leader); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := c.controllers[leader].Signal(signal); err != nil {
		return 0, fmt.Errorf("end the leader: %w", err)
	}
	err := carve.Until(ctx, waitTimeout, "the other replica leads", func(ctx context.Context) error { return c.leads(ctx, next) })
	return time.Since(begin), err
}
