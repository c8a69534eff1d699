//go:build e2e

// Package tests proves Carve on a real cluster: a real API server, scheduler,
// controller-manager and kubelets, real LVM in real kernels. The cases read as
// what users may rely on.
//
// Every test gets a namespace of its own and leaves nothing behind. Tests that begin have
// the cluster for themselves: the nodes' logical volumes, device-mapper entries, loop
// devices, mounts and programs are compared before and after each. Tests that run beside
// each other come after them; what each leaves is distinguished by its namespace, and the
// nodes are compared when all have ended.
package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

var (
	keep      = flag.Bool("keep", false, "use the cluster that is up, and leave it up afterwards")
	schedules = flag.Int("schedules", 1, "how many times the test of a random scenario runs all its events")
	seed      = flag.Uint64("seed", 1, "the order of its events")
	name      = flag.String("cluster", "test", "name of the cluster")
)

// client reaches the cluster that all tests share.
var client *carve.Client

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Minute)
	defer cancel()
	if !*keep {
		// What an aborted run has left says nothing about this one.
		if err := cluster.Down(ctx, *name, os.Stdout); err != nil {
			return 1, err
		}
	}
	c, err := cluster.Up(ctx, cluster.Options{Name: *name, Nodes: 2, Progress: os.Stdout})
	if err != nil {
		return 1, err
	}
	if !*keep {
		defer func() {
			down, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if downErr := c.Down(down); downErr != nil && err == nil {
				err = downErr
			}
		}()
	}
	client, err = carve.NewClient(c)
	if err != nil {
		return 1, err
	}
	if err := client.Install(ctx, os.Stdout); err != nil {
		client.Diagnose(context.Background(), os.Stdout)
		return 1, err
	}
	before, err := footprints(ctx)
	if err != nil {
		return 1, err
	}
	code = m.Run()
	if err := errors.Join(namespacesGone(context.Background()), nodesAsBefore(context.Background(), before)); err != nil {
		// It counts as a test, which is not run again.
		fmt.Printf("    left behind: %v\n--- FAIL: TheNodesAreAsBefore (0.00s)\n", err)
		code = 1
	}
	if code != 0 {
		client.Diagnose(context.Background(), os.Stdout)
	}
	return code, nil
}

// nodesAsBefore waits until the nodes are as they were before all tests.
func nodesAsBefore(ctx context.Context, before map[string][]string) error {
	return carve.Until(ctx, waitTimeout, "the nodes are as before all tests", func(ctx context.Context) error {
		after, err := footprints(ctx)
		if err != nil {
			return err
		}
		for node := range before {
			if !slices.Equal(before[node], after[node]) {
				return fmt.Errorf("%s has %q, had %q", node, after[node], before[node])
			}
		}
		return nil
	})
}
