package capacity

import (
	"fmt"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// Owner watches the controller's Deployment, which owns the capacity objects: the garbage collector
// removes them when Carve is uninstalled. Its methods may be called concurrently.
type Owner struct {
	factory informers.SharedInformerFactory
	cache.TypedSharedIndexInformer[*appsv1.Deployment]
	// seen is true once the Deployment has existed.
	seen atomic.Bool
}

// NewOwner returns an Owner that watches the Deployment after Start.
func NewOwner(client kubernetes.Interface, namespace string) (*Owner, error) {
	o := &Owner{}
	o.factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, names.ControllerDeployment).String()
		}))
	o.TypedSharedIndexInformer = o.factory.Apps().V1().Deployments().TypedInformer()
	err := o.SetTransform(func(obj any) (any, error) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			obj = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
				Name: d.Name, Namespace: d.Namespace, UID: d.UID, ResourceVersion: d.ResourceVersion, DeletionTimestamp: d.DeletionTimestamp,
			}}
		}
		return obj, nil
	})
	if err != nil {
		return nil, fmt.Errorf("prepare informer: %w", err)
	}
	return o, nil
}

// Start watches until stop is closed.
func (o *Owner) Start(stop <-chan struct{}) { o.factory.Start(stop) }

// Shutdown waits for the goroutines of Start.
func (o *Owner) Shutdown() { o.factory.Shutdown() }

// References returns the owners that objects should have. They are nil if unknown; existing owners
// then stay.
//
// ended is true if the Deployment is gone or being deleted: the garbage collector would not remove
// objects created now.
func (o *Owner) References() (owners []metav1.OwnerReference, ended bool) {
	if !o.HasSynced() {
		return nil, false
	}
	for _, d := range cluster.List(o.TypedSharedIndexInformer) {
		if d.Name != names.ControllerDeployment { // a fake API server ignores the selector
			continue
		}
		o.seen.Store(true)
		if d.DeletionTimestamp != nil {
			return nil, true
		}
		return []metav1.OwnerReference{{
			APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: d.Name, UID: d.UID,
		}}, false
	}
	return nil, o.seen.Load()
}
