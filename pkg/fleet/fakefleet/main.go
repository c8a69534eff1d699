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
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
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
	controllers                                []string
	serverName, caFile, tokens, class, changes string
	bytes                                      int64
	volumes, changed                           int
	createTime                                 time.Duration
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
	flags.StringVar(&o.class, "device-class", "local", "name of every node's device class, which is the default one")
	flags.Int64Var(&o.bytes, "bytes", 100<<30, "size of every node's device class")
	flags.IntVar(&o.volumes, "volumes", 0, "volumes of 1 MiB that every node has from the beginning")
	flags.StringVar(&o.changes, "changes", "", "file to which lines of a node and a time (ns since 1970) are appended as its size changes, at SIGUSR1")
	flags.IntVar(&o.changed, "changed", 200, "how many nodes change then, twenty per second")
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
	var nodes []*lvmdfake.Server
	for _, file := range files {
		node := lvmdfake.New(file.Name(), lvmdfake.Class{Name: o.class, Default: true, Bytes: o.bytes})
		for i := range o.volumes {
			_, err := node.CreateVolume(ctx, &lvmdv1.CreateVolumeRequest{Name: fmt.Sprintf("held-%d", i), RequiredBytes: 1 << 20, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM})
			if err != nil {
				return fmt.Errorf("make a volume of %s: %w", file.Name(), err)
			}
		}
		nodes = append(nodes, node)
		node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
			select {
			case <-time.After(o.createTime):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		server := grpc.NewServer(uplink.ServerOptions()...)
		lvmdv1.RegisterLVMDServer(server, node)
		context.AfterFunc(ctx, server.Stop)
		for _, controller := range o.controllers {
			group.Go(func() error {
				return uplink.RunClient(ctx, uplink.ClientOptions{
					Addresses: controller, ServerName: o.serverName, CAFile: o.caFile, TokenFile: filepath.Join(o.tokens, file.Name()),
					NodeName: file.Name(), Version: "fake", Serve: server.Serve, Log: log.With("node", file.Name()),
				})
			})
		}
	}
	if o.changes != "" {
		group.Go(func() error { return change(ctx, o, nodes) })
	}
	return group.Wait()
}

// change waits for SIGUSR1, and then gives nodes another size, one after the other.
func change(ctx context.Context, o options, nodes []*lvmdfake.Server) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	defer signal.Stop(asked)
	select {
	case <-asked:
	case <-ctx.Done():
		return nil
	}
	file, err := os.OpenFile(o.changes, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("changes: %w", err)
	}
	defer file.Close()
	tick := time.NewTicker(time.Second / 20)
	defer tick.Stop()
	for _, node := range nodes[:min(o.changed, len(nodes))] {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		now := time.Now()
		node.Resize(o.class, o.bytes/2)
		if _, err := fmt.Fprintln(file, node.Node(), now.UnixNano()); err != nil {
			return fmt.Errorf("changes: %w", err)
		}
	}
	return nil
}
