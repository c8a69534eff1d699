// Command benchpod measures, on a real cluster and in one run, how long Pods take from creation to Running: with
// an emptyDir, and with a Carve volume by kube-scheduler and by carve-scheduler; one by one and in bursts. It relates
// what a volume takes to lvcreate, mkfs and mount by hand. It prints a Markdown table.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/cluster"
)

// bound is how long the whole run may take.
const bound = 2 * time.Hour

type options struct {
	cluster string
	nodes   int
	singles int
	bursts  []int
	rounds  int
	keep    bool
}

func main() {
	var o options
	c := &cobra.Command{
		Use: "benchpod", Short: "Measure how long Pods take to start", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&o.cluster, "cluster", "bench", "name of the cluster; one that is up is used as it is")
	f.IntVar(&o.nodes, "nodes", 2, "number of nodes")
	f.IntVar(&o.singles, "singles", 20, "Pods of each kind that are started one by one")
	f.IntSliceVar(&o.bursts, "bursts", []int{10, 50, 100}, "Pods that are started at once")
	f.IntVar(&o.rounds, "rounds", 3, "rounds of each burst")
	f.BoolVar(&o.keep, "keep", false, "leave the cluster up afterwards")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := cluster.Up(ctx, cluster.Options{Name: o.cluster, Nodes: o.nodes, Progress: os.Stderr})
	if err != nil {
		return err
	}
	if !o.keep {
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
	if err := install(ctx, client); err != nil {
		return err
	}
	t := table{}
	defer t.print(os.Stdout) // with an error, what was measured before
	for range o.singles {
		if err := t.measure(ctx, client, 1); err != nil {
			return err
		}
	}
	for _, pods := range o.bursts {
		for range o.rounds {
			if err := t.measure(ctx, client, pods); err != nil {
				return err
			}
		}
	}
	return nil
}

// install installs Carve with carve-scheduler, and starts a Pod of each kind, which does not count: it
// brings pages and caches in.
func install(ctx context.Context, client *carve.Client) error {
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	if err := client.Install(ctx, os.Stderr); err != nil {
		return err
	}
	if err := client.LoadScheduler(ctx, os.Stderr); err != nil {
		return err
	}
	if _, err := client.Kubectl(ctx, nil, "apply", "--kustomize", filepath.Join(root, "e2e", "deploy-scheduler")); err != nil {
		return err
	}
	if _, err := client.Kubectl(ctx, nil, "rollout", "status", "--namespace", carve.Namespace, "deployment/carve-scheduler"); err != nil {
		return err
	}
	if err := client.WaitReady(ctx, 5*time.Minute); err != nil {
		return err
	}
	return table{}.measure(ctx, client, 1)
}
