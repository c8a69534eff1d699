// Command lvmd owns a node's volume groups: it serves api/lvmd/v1 on a unix
// socket and, over the uplink that it dials, to the controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/logging"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/privilege"
)

// version is set by the build.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command(func() error { return privilege.Reduce(lvmd.Capabilities...) }).ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "lvmd: %v\n", err)
		os.Exit(1)
	}
}

// command returns the command line; reduce drops the privileges that the daemon does not need.
func command(reduce func() error) *cobra.Command {
	f := flags{reduce: reduce}
	c := &cobra.Command{
		Use:           "lvmd",
		Short:         "Carve's storage daemon: owns the volume groups of this node",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	f.add(c.Flags())
	asks := &client{}
	c.PersistentFlags().StringVar(&f.socket, "socket", "/run/carve/lvmd.sock", "unix socket that lvmd serves on, and that the commands ask")
	c.PersistentFlags().BoolVar(&asks.json, "json", false, "have the commands that ask lvmd print JSON, one object per line")
	asks.socket = &f.socket
	logs := logging.AddFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		log, err := logs.Logger(os.Stderr)
		if err != nil {
			return err
		}
		return run(c.Context(), f, log)
	}
	c.AddCommand(checkConfig(), configSchema())
	c.AddCommand(asks.commands()...)
	return c
}

func configSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "config-schema",
		Short: "Print the JSON Schema of the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}

func checkConfig() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE",
		Short: "Say what is wrong with a configuration file, one line each",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, err := config.Load(args[0])
			var problems config.Problems
			if !errors.As(err, &problems) {
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(c.ErrOrStderr(), p)
			}
			return fmt.Errorf("%s: %d problems", args[0], len(problems))
		},
	}
}
