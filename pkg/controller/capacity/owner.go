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

// Owner watches the controller's Deployment, which owns the capacity objects: the garbage
// collector removes them when Carve is uninstalled. Its methods are safe for concurrent use.
type Owner struct {
	factory informers.SharedInformerFactory
	cache.TypedSharedIndexInformer[*appsv1.Deployment]
	// seen is set once the Deployment was found to exist.
	seen atomic.Bool
}

// NewOwner watches the controller's Deployment in a namespace, once it is started.
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

// Shutdown waits for the end of what Start started.
func (o *Owner) Shutdown() { o.factory.Shutdown() }

// References are what objects should have for owners: nothing where that is not
// known, which says nothing of what they may have.
//
// ended is true when the Deployment was there and is not any more, or is about to
// go: the garbage collector would not remove what is made now.
func (o *Owner) References() (owners []metav1.OwnerReference, ended bool) {
	if !o.HasSynced() {
		return nil, false
	}
	for _, d := range cluster.List(o.TypedSharedIndexInformer) {
		if d.Name != names.ControllerDeployment { // a fake API server selects nothing
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
