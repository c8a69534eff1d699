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
	// resourceLook is how often an API server is asked for a resource that it did not have: it may be
	// upgraded, or its definition be installed.
	resourceLook = 30 * time.Second
	// resourceRetry is how soon one is asked again that did not answer.
	resourceRetry = time.Second
)

// awaitResource returns true once the API server has a resource, and false when ctx is done.
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
