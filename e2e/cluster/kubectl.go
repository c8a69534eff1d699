package cluster

import (
	"context"
	"io"
	"os"
	"os/exec"

	"github.com/carve-csi/carve/e2e/kube"
)

// Kubectl runs kubectl with the arguments and all rights. The streams may be nil.
// The error is an *exec.ExitError where kubectl ran and failed; what it printed
// as its error is in stderr.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) error {
	command := exec.CommandContext(ctx, c.kube, append([]string{kube.Kubectl}, args...)...)
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, stderr
	return c.RunProgram(command)
}

// RunProgram runs a program of the host where the API server can be reached, with all rights, as
// kubectl has them, by the environment variable KUBECONFIG.
func (c *Cluster) RunProgram(command *exec.Cmd) error {
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	return c.namespace.Run(command)
}
