package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/leftovers"
)

// Result is what a command on a node did.
type Result struct {
	Stdout, Stderr string
	// ExitCode is 128 plus the signal's number where a signal ended the command.
	ExitCode int
}

// NodeNames returns the names of all nodes, whether they are on or off.
func (c *Cluster) NodeNames() []string {
	var names []string
	for _, n := range c.nodes {
		names = append(names, n.name())
	}
	return names
}

// Exec runs a command on a node, as root, outside of all containers. It needs
// neither the control plane nor the node's network. An exit code other than 0 is no
// error; agent.ErrGone says that the node is off or went off.
func (c *Cluster) Exec(ctx context.Context, name string, argv ...string) (Result, error) {
	var stdout, stderr bytes.Buffer
	code, err := c.Run(ctx, name, agent.Command{Argv: argv, Stdout: &stdout, Stderr: &stderr})
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: code}, err
}

// Run is Exec with streams, a terminal and an environment.
func (c *Cluster) Run(ctx context.Context, name string, command agent.Command) (int, error) {
	n, err := c.find(name)
	if err != nil {
		return 0, err
	}
	code, err := c.client(n).Run(ctx, command)
	if errors.Is(err, agent.ErrGone) {
		return code, fmt.Errorf("run %v on %s: %w%s", command.Argv, name, err, c.logEnds(n))
	}
	if err != nil {
		return code, fmt.Errorf("run %v on %s: %w", command.Argv, name, err)
	}
	return code, nil
}

// Snapshot lists what storage there is on a node: volume groups, logical volumes,
// device-mapper entries, loop devices and the mounts below the kubelet's folder.
// Compare two with leftovers.Compare.
func (c *Cluster) Snapshot(ctx context.Context, name string) (leftovers.Snapshot, error) {
	n, err := c.find(name)
	if err != nil {
		return leftovers.Snapshot{}, err
	}
	snapshot, err := leftovers.Take(ctx, c.client(n), n.kubeletDir)
	if err != nil {
		return snapshot, fmt.Errorf("look at %s: %w", name, err)
	}
	return snapshot, nil
}

// Kill cuts a node's power and returns when it is off. What it had not yet given
// to its disks is lost. It is no error if it is off.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	n, err := c.find(name)
	if err != nil {
		return err
	}
	return c.killMachine(ctx, n)
}

// Unplug cuts a node off the network, and returns at once, without a notice to anything. It goes
// on running, and Exec still works. It is no error if it is cut off.
func (c *Cluster) Unplug(name string) error {
	n, err := c.find(name)
	if err != nil {
		return err
	}
	return c.namespace.UnplugTap(n.tap())
}

// Plug puts a node back on the network. It is no error if it is there.
func (c *Cluster) Plug(name string) error {
	n, err := c.find(name)
	if err != nil {
		return err
	}
	return c.namespace.AddTap(n.tap())
}

// Start switches a node on again and returns when it is Ready. It is no error if
// it is on.
func (c *Cluster) Start(ctx context.Context, name string) error {
	n, err := c.find(name)
	if err != nil {
		return err
	}
	running, err := c.running(n)
	if err != nil {
		return err
	}
	if !running {
		if err := c.launch(n, filepath.Join(c.dir, hostProgram)); err != nil {
			return err
		}
	}
	if err := c.waitMachine(ctx, n); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.controlPlane.RESTConfig())
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return c.admit(ctx, client, n)
}
