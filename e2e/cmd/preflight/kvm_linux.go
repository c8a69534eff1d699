package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/carve-csi/carve/e2e/vm/platform"
)

// withoutKVM says why machines do not run with KVM; nothing if they do.
func withoutKVM() (string, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return platform.WithoutKVM(ctx, os.Stderr)
}
