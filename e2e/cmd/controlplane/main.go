// Command controlplane runs a command beside a bare control plane: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler without nodes, in a
// network namespace of their own. The command runs inside that namespace, with
// KUBECONFIG set to the administrator's, and KUBERNETES to the multi-call binary of the
// components. The API server refuses Pods of the priority classes system-*-critical in
// namespaces without a quota for them. When the command ends, all of it is removed.
//
//	controlplane [--name NAME] [--kubernetes VERSION] COMMAND [ARGUMENT...]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/kube"
	"github.com/carve-csi/carve/e2e/netns"
	"github.com/carve-csi/carve/e2e/preflight"
)

// prefix begins the names of the namespaces.
const prefix = "carve-bare-"

func main() {
	name := flag.String("name", netns.NameOf(prefix), "name of the network namespace, which must not be in use")
	version := flag.String("kubernetes", kube.Version, "version of Kubernetes, etcd with it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *version, flag.Args(), os.Stderr); err != nil {
		var failed *commandError
		if errors.As(err, &failed) {
			os.Exit(failed.ExitCode()) // it has said why
		}
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

// commandError is how the command ended; programs that are run for it, such as go, fail otherwise.
type commandError struct{ *exec.ExitError }

func run(ctx context.Context, name, version string, arguments []string, progress io.Writer) (err error) {
	if len(arguments) == 0 {
		return errors.New("no command to run")
	}
	if err := preflight.Check(preflight.ControlPlane()); err != nil {
		return err
	}
	binary, err := kube.BuildVersion(ctx, version, progress)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "carve-controlplane-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := netns.RemoveAbandoned(ctx, prefix); err != nil {
		return err
	}
	namespace, err := netns.Create(name, netns.DefaultGateway)
	if err != nil {
		return err
	}
	defer func() {
		// Ends every process inside, too.
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, netns.Remove(removing, name))
	}()
	c, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Namespace: namespace, Kube: binary, FakeNodes: true, LimitCritical: true, Progress: progress})
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), "KUBECONFIG="+c.AdminKubeconfig(), "KUBERNETES="+binary)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	if err := namespace.Run(command); err != nil {
		// It may have failed for want of a component.
		c.PrintEnded(progress)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return &commandError{exit}
		}
		return fmt.Errorf("%s: %w", arguments[0], err)
	}
	return nil
}
