// Command cluster brings a real Kubernetes cluster up on this machine, for trying
// Carve out and for its tests: see its --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carve-csi/carve/e2e/cluster"
)

const long = `cluster runs upstream Kubernetes on this machine: the control plane as processes,
each node as a machine of its own with containerd, kubelet and disks for
volume groups (carve on /dev/vdb, /dev/vdc left empty). Everything lives in a network namespace, carve-NAME;
nothing listens outside it.

It needs root and Debian, installs the packages it uses, and keeps what is slow to
make in the user's cache folder (XDG_CACHE_HOME or ~/.cache, there in carve): from
an empty cache "up" takes about ten minutes, afterwards less than one. Nodes are virtual
machines where KVM works, and otherwise kernels that run as programs (User Mode Linux).
With --pmem and without KVM they are emulated, twenty times slower than this machine.`

// exitCode is an error that carries the exit code of what was run.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newCommand().ExecuteContext(ctx)
	var code exitCode
	var exit *exec.ExitError
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var name string
	root := &cobra.Command{
		Use: "cluster", Short: "Run a real Kubernetes cluster on this machine", Long: long,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(upCommand(&name), downCommand(&name), statusCommand(&name), kubectlCommand(&name),
		execCommand(&name), logsCommand(&name), killCommand(&name), startCommand(&name), loadCommand(&name))
	for _, command := range root.Commands() {
		command.Flags().StringVar(&name, "name", cluster.DefaultName, "the cluster's name")
	}
	root.AddCommand(prepareCommand())
	return root
}

func prepareCommand() *cobra.Command {
	return &cobra.Command{
		Use: "prepare", Short: "Make what clusters are made of, where the cache lacks it", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return cluster.Prepare(command.Context(), os.Stderr) },
	}
}

func upCommand(name *string) *cobra.Command {
	var nodes int
	var pmem bool
	command := &cobra.Command{
		Use: "up", Short: "Bring the cluster up, or complete it", Args: cobra.NoArgs,
		Long: "Bring the cluster up and return when every node is Ready and the cluster's names are\n" +
			"served. What is up already stays as it is.",
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := cluster.Up(command.Context(), cluster.Options{Name: *name, Nodes: nodes, PersistentMemory: pmem, Progress: os.Stderr})
			return err
		},
	}
	command.Flags().BoolVar(&pmem, "pmem", false, "give each node persistent memory (carve-pmem on /dev/pmem0), which only virtual machines have")
	command.Flags().IntVar(&nodes, "nodes", 0, fmt.Sprintf("number of nodes, at most %d (default %d)", cluster.MaxNodes, cluster.DefaultNodes))
	return command
}

func downCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Remove the cluster with all that it holds", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return cluster.Down(command.Context(), *name, os.Stderr)
		},
	}
}

func statusCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show what is up", Args: cobra.NoArgs,
		Long: "Show, a line each, how the components of the control plane and the nodes are. The exit\n" +
			"code is 0 only if all is well.",
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			well := true
			for _, line := range c.Status(command.Context()) {
				fmt.Printf("%-24s %s\n", line.Name, line.Message)
				well = well && line.Well
			}
			if !well {
				return exitCode(1)
			}
			return nil
		},
	}
}

func killCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "kill NODE", Short: "Cut a node's power", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			return c.Kill(command.Context(), args[0])
		},
	}
}

func startCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "start NODE", Short: "Switch a node on again and wait until it is Ready", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			return c.Start(command.Context(), args[0])
		},
	}
}

func loadCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "load IMAGE.tar [ALIAS...]", Short: "Load a container image into every node", Args: cobra.MinimumNArgs(1),
		Long: "Load an image, a tar as docker save writes it, into every node's containerd, under its own\n" +
			"name and under the aliases (complete ones: docker.io/library/busybox:1.36).",
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			return c.LoadImage(command.Context(), args[0], args[1:]...)
		},
	}
}
