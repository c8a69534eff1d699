// fakefleet runs many nodes in one process for benchmarks of the controller: one fake lvmd per file
// of a folder, each with its own uplink to a real controller. A benchmark drives the nodes over
// HTTP, see control.go.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakefleet:", err)
		os.Exit(1)
	}
}

type options struct {
	controllers                         []string
	serverName, caFile, tokens, control string
	classes, volumes, full              int
	bytes                               int64
	createTime, restartTime             time.Duration
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "fakefleet", Short: "Be many nodes without disks", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.controllers, "controller", nil, "addresses of the uplinks of the controller's replicas, host:port")
	flags.StringVar(&o.serverName, "server-name", "", "name in the controller's certificate")
	flags.StringVar(&o.caFile, "controller-ca", "", "file with the controller's CA")
	flags.StringVar(&o.tokens, "tokens", "", "folder with one file per node, named as the node, that holds its token")
	flags.IntVar(&o.classes, "classes", 1, "device classes of every node, each with a volume group of its own: local, which is the default one, local-2 and so on")
	flags.Int64Var(&o.bytes, "bytes", 100<<30, "size of every device class")
	flags.IntVar(&o.volumes, "volumes", 0, "volumes of one extent that every node has from the beginning, as another cluster's claims would have left them")
	flags.IntVar(&o.full, "full", 0, "percentage of nodes that have two extents left")
	flags.DurationVar(&o.createTime, "create-time", 0, "how long every create and every delete takes in its volume group, one after the other")
	flags.DurationVar(&o.restartTime, "restart-time", 5*time.Second, "how long a node that is restarted has no uplink")
	flags.StringVar(&o.control, "control", "", "address on which HTTP requests are taken that have nodes change")
	return cmd
}

func run(ctx context.Context, o options) error {
	files, err := os.ReadDir(o.tokens)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	group, ctx := errgroup.WithContext(ctx)
	var nodes []*node
	for i, file := range files {
		n, err := newNode(ctx, o, file.Name(), isFull(i, o.full), log)
		if err != nil {
			return fmt.Errorf("node %s: %w", file.Name(), err)
		}
		nodes = append(nodes, n)
		group.Go(func() error { return n.run(ctx) })
	}
	if o.control != "" {
		group.Go(func() error { return serveControl(ctx, o, nodes) })
	}
	return group.Wait()
}

// isFull spreads the full nodes evenly.
func isFull(i, percentage int) bool { return (i+1)*percentage/100 > i*percentage/100 }
