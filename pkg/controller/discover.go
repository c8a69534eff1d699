package controller

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/carve-csi/carve/pkg/controller/cluster"
)

const (
	// resourceLook is the interval while the API server lacks a resource: an upgrade may add
	// it.
	resourceLook  = 30 * time.Second
	resourceRetry = time.Second
)

func awaitResource(ctx context.Context, server discovery.DiscoveryInterface, group schema.GroupVersion, name string, log *slog.Logger) bool {
	for {
		next := resourceLook
		has, err := cluster.Serves(ctx, server, group, name)
		switch {
		case has:
			return true
		case err != nil:
			log.Warn("it is not known whether the API server has a resource, trying on", "resource", name, "group", group.String(), "error", err)
			next = resourceRetry
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(next):
		}
	}
}
