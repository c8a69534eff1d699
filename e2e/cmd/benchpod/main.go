// Command benchpod measures, on a real cluster and in one run, how long Pods
// take from creation to Running with an emptyDir and with a Carve volume, one
// by one and in a burst, and how long a claim takes from the scheduler's
// choice of a node to bound. It prints a Markdown table.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

func main() {
	name := flag.String("cluster", "bench", "name of the cluster; one that is up is used as it is")
	nodes := flag.Int("nodes", 2, "number of nodes")
	rounds := flag.Int("rounds", 3, "rounds of each measurement; medians are printed")
	burst := flag.Int("burst", 20, "Pods in a burst")
	keep := flag.Bool("keep", false, "leave the cluster up afterwards")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *nodes, *rounds, *burst, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "benchpod:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, nodes, rounds, burst int, keep bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Minute)
	defer cancel()
	c, err := cluster.Up(ctx, cluster.Options{Name: name, Nodes: nodes, Progress: os.Stderr})
	if err != nil {
		return err
	}
	if !keep {
		defer func() {
			down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
			defer cancel()
			if downErr := c.Down(down); err == nil {
				err = downErr
			}
		}()
	}
	client, err := carve.NewClient(c)
	if err != nil {
		return err
	}
	if err := client.Install(ctx, os.Stderr); err != nil {
		return err
	}
	table, err := measure(ctx, client, rounds, burst)
	if len(table.carveBurst) > 0 {
		table.print(os.Stdout)
	}
	return err
}
