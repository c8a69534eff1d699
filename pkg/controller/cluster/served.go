package cluster

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// VolumeAttributesClasses is the resource of these classes, which API servers serve since
// Kubernetes 1.34.
const VolumeAttributesClasses = "volumeattributesclasses"

// Serves reports whether an API server serves a resource.
func Serves(ctx context.Context, server discovery.DiscoveryInterface, group schema.GroupVersion, name string) (bool, error) {
	found, err := discovery.ToServerResourcesInterfaceWithContext(server).ServerResourcesForGroupVersionWithContext(ctx, group.String())
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return slices.ContainsFunc(found.APIResources, func(r metav1.APIResource) bool { return r.Name == name }), nil
}
