//go:build e2e

// Package tests proves Carve on a real cluster: a real API server, scheduler,
// controller-manager and kubelets, real LVM in real kernels. The cases read as
// what users may rely on.
//
// Every test gets a namespace of its own and leaves nothing behind: the nodes'
// logical volumes, device-mapper entries and mounts are compared before and
// after it.
package tests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

var (
	keep  = flag.Bool("keep", false, "leave the cluster up afterwards")
	decks = flag.Int("decks", 1, "how many times the test of a random life plays all its cards")
	seed  = flag.Uint64("seed", 1, "the order of its cards")
	name  = flag.String("cluster", "test", "name of the cluster; one that is up is used as it is")
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
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
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
	code = m.Run()
	if code != 0 {
		client.Diagnose(context.Background(), os.Stdout)
	}
	return code, nil
}
