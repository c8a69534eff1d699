// Command vmhost runs one test machine until the machine is off; see package
// vm/host. It is started by the cluster harness, not by people.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/carve-csi/carve/e2e/vm/host"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: vmhost DESCRIPTION.json")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := host.Run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "vmhost:", err)
		os.Exit(1)
	}
}
