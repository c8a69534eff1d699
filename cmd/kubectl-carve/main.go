// kubectl-carve is a plugin of kubectl: it shows Carve's state in a cluster and explains why a
// Pod waits for a volume.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/carve-csi/carve/pkg/kubectl"
)

// version is set at build time.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := kubectl.NewCommand(version).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubectl carve:", err)
		os.Exit(1)
	}
}
