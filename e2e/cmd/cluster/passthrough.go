package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carve-csi/carve/e2e/cluster"
	"github.com/carve-csi/carve/e2e/vm/agent"
)

func kubectlCommand(name *string) *cobra.Command {
	command := &cobra.Command{
		Use: "kubectl [--name NAME] ARGUMENT...", Short: "Run kubectl with all rights", Args: cobra.ArbitraryArgs,
		Long: "Run kubectl with all rights, inside the cluster's network namespace. Flags of kubectl may\n" +
			"follow its first argument; --name comes before it.",
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			return c.Kubectl(command.Context(), os.Stdin, os.Stdout, os.Stderr, args...)
		},
	}
	// What follows the first argument is kubectl's.
	command.Flags().SetInterspersed(false)
	return command
}

func execCommand(name *string) *cobra.Command {
	command := &cobra.Command{
		Use: "exec [--name NAME] NODE [COMMAND...]", Short: "Run a command on a node, as root", Args: cobra.MinimumNArgs(1),
		Long: "Run a command on a node, as root, outside of all containers; a shell without one. It works\n" +
			"whenever the node is on, even if neither the control plane nor the node's network does.",
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			argv := args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				argv = []string{"bash", "--login"}
			}
			code, err := execOnNode(command.Context(), c, args[0], argv)
			if err == nil && code != 0 {
				return exitCode(code)
			}
			return err
		},
	}
	command.Flags().SetInterspersed(false)
	return command
}

// execOnNode connects the command to our own streams, and to our terminal if we
// have one.
func execOnNode(ctx context.Context, c *cluster.Cluster, node string, argv []string) (int, error) {
	command := agent.Command{Argv: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	terminal := int(os.Stdin.Fd())
	if !term.IsTerminal(terminal) || !term.IsTerminal(int(os.Stdout.Fd())) {
		return c.Run(ctx, node, command)
	}
	state, err := term.MakeRaw(terminal)
	if err != nil {
		return 0, fmt.Errorf("prepare the terminal: %w", err)
	}
	defer func() { _ = term.Restore(terminal, state) }()
	sizes := make(chan [2]uint16, 1)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	changed <- syscall.SIGWINCH // The size at first.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			size, err := unix.IoctlGetWinsize(terminal, unix.TIOCGWINSZ)
			if err != nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case sizes <- [2]uint16{size.Row, size.Col}:
			}
		}
	}()
	command.TTY, command.Resize = true, sizes
	return c.Run(ctx, node, command)
}

func logsCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "logs COMPONENT | logs NODE [SERVICE]", Short: "Print the log of a component, a node's console or a node's service",
		Args: cobra.RangeArgs(1, 2),
		Long: "Print a log: of a component of the control plane (etcd, kube-apiserver,\n" +
			"kube-controller-manager, kube-scheduler), of a node's console (NODE alone), or of a service on\n" +
			"a node (containerd, kubelet).",
		RunE: func(command *cobra.Command, args []string) error {
			c, err := cluster.Attach(*name)
			if err != nil {
				return err
			}
			service := ""
			if len(args) == 2 {
				service = args[1]
			}
			log, err := c.Log(command.Context(), args[0], service)
			if err != nil {
				return err
			}
			defer log.Close()
			_, err = io.Copy(os.Stdout, log)
			return err
		},
	}
}
