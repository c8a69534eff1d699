package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// systemdFiles are what a machine that systemd boots has beyond the packages: empty
// units, which keep it from starting what only nodes and people need.
var systemdFiles = []guest.File{
	{Path: "/etc/systemd/system/containerd.service", Mode: 0o644},
	{Path: "/etc/systemd/system/memcached.service", Mode: 0o644},
	{Path: "/etc/systemd/system/getty.target", Mode: 0o644},
}

// init is the machine's first process where that is not the harness' own.
func (b *builder) init() []string {
	if !b.options.systemd {
		return nil
	}
	return []string{"/lib/systemd/systemd"}
}

// waitBooted waits until systemd has started all that it is to start. A service
// that failed is an error.
func waitBooted(ctx context.Context, machine *agent.Client) error {
	for {
		var said strings.Builder
		// It answers "offline" at once while the first process is still another.
		_, err := machine.Run(ctx, agent.Command{Argv: []string{"systemctl", "is-system-running", "--wait"}, Stdout: &said})
		if err != nil {
			return fmt.Errorf("wait for systemd: %w", err)
		}
		switch state := strings.TrimSpace(said.String()); state {
		case "running":
			return nil
		case "degraded", "maintenance":
			failed, err := machine.Output(ctx, "systemctl", "list-units", "--failed", "--plain", "--no-legend")
			return errors.Join(fmt.Errorf("systemd is %s: %s", state, failed), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for systemd, which is %s: %w", strings.TrimSpace(said.String()), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
