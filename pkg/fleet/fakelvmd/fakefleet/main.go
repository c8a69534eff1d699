// fakefleet is many nodes in one process: one fake lvmd per file of a folder,
// each with its own uplink to a real controller. It is what benchmarks of the
// controller run against.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet/fakelvmd"
	"github.com/carve-csi/carve/pkg/uplink"
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

// options are the command line.
type options struct {
	controller, serverName, caFile, tokens, class string
	bytes                                         int64
	createTime                                    time.Duration
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "fakefleet", Short: "Be many nodes without disks", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.controller, "controller", "", "address of the controller's uplink, host:port")
	flags.StringVar(&o.serverName, "server-name", "", "name in the controller's certificate")
	flags.StringVar(&o.caFile, "controller-ca", "", "file with the controller's CA")
	flags.StringVar(&o.tokens, "tokens", "", "folder with one file per node, named as the node, that holds its token")
	flags.StringVar(&o.class, "device-class", "local", "name of every node's device class, which is the default one")
	flags.Int64Var(&o.bytes, "bytes", 100<<30, "size of every node's device class")
	flags.DurationVar(&o.createTime, "create-time", 0, "how long every create takes")
	return cmd
}

func run(ctx context.Context, o options) error {
	files, err := os.ReadDir(o.tokens)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	group, ctx := errgroup.WithContext(ctx)
	for _, file := range files {
		node := fakelvmd.New(file.Name(), fakelvmd.Class{Name: o.class, Default: true, Bytes: o.bytes})
		node.SetHooks(fakelvmd.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
			select {
			case <-time.After(o.createTime):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		server := grpc.NewServer(uplink.ServerOptions()...)
		lvmdv1.RegisterLVMDServer(server, node)
		group.Go(func() error {
			defer server.Stop()
			return uplink.RunClient(ctx, uplink.ClientOptions{
				Addresses: o.controller, ServerName: o.serverName, CAFile: o.caFile, TokenFile: filepath.Join(o.tokens, file.Name()),
				NodeName: file.Name(), Version: "fake", Serve: server.Serve, Log: log.With("node", file.Name()),
			})
		})
	}
	return group.Wait()
}
