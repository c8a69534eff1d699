// Package host keeps a machine running in a process of its own, so that the
// machine outlives the command that started it and several processes can reach
// its agent.
//
// The process (cmd/vmhost) is the machine: when it ends, however it ends, the
// kernel kills QEMU, and when QEMU ends, so does it. It relays the machine's agent
// on a socket whose name is in its network namespace, not in a file system: only
// processes in the same namespace reach it, and nothing is left of it when the
// process ends.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/carve-csi/carve/e2e/vm"
)

// Socket is the address, for the network "unix", of the agent of the machine
// called name, in the network namespace of its process.
func Socket(name string) string { return "@carve-vm/" + name }

// Run runs the machine that the file describes (JSON of a vm.Config) until it is
// off or ctx ends, which cuts its power.
func Run(ctx context.Context, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the machine's description: %w", err)
	}
	var config vm.Config
	if err := json.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("read the machine's description: %w", err)
	}
	// Taken first: two processes for one machine would spoil its disks.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", Socket(config.Name))
	if err != nil {
		return fmt.Errorf("machine %s runs already: %w", config.Name, err)
	}
	machine, err := vm.Start(config)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	relayed := make(chan error, 1)
	go func() { relayed <- machine.Agent().Relay(listener) }()
	select {
	case <-ctx.Done():
	case <-machine.Done():
	}
	machine.Kill()
	return errors.Join(listener.Close(), <-relayed)
}
