package controller

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// apiTimeout bounds one call to the API server.
	apiTimeout = 15 * time.Second
	// createTimeout bounds one create on a node: lvcreate and mkfs, behind the
	// creates of a whole burst. Giving up is dear, because the node then undoes
	// what it began, and it is not how a dead node is noticed: that is the
	// uplink's keepalive, and lvmd bounds each command that it runs.
	createTimeout = 5 * time.Minute
	// deleteTimeout bounds one delete on a node; wiping is not part of it.
	deleteTimeout = 60 * time.Second
)

// byUID is the index of claims by their UID.
const byUID = "uid"

// bySource is the index of claims by the claim that they are to be a clone of.
const bySource = "source"

// core is what the parts of the controller share.
type core struct {
	client    kubernetes.Interface
	snapshots snapshotclient.Interface // nil for none
	fleet     *fleet.Fleet
	ledger    *scheduler.Ledger
	recorder  record.EventRecorder
	metrics   *metrics
	log       *slog.Logger
	namespace string
	clusterID string
	identity  string
	now       func() time.Time
	pace      *pace
	available *availability
	losses    losses
	owner     *capacityOwner // nil for none
	// workers is set by tests only: how many claims, and volumes that are to be deleted,
	// are worked on at once; zero means the constants.
	workers int

	claims     cache.SharedIndexInformer
	volumes    cache.SharedIndexInformer
	classes    cache.SharedIndexInformer
	nodes      cache.SharedIndexInformer
	capacities cache.SharedIndexInformer
	pods       cache.SharedIndexInformer // those without a node

	volumeLister corelisters.PersistentVolumeLister
	classLister  storagelisters.StorageClassLister
	nodeLister   corelisters.NodeLister
}

// useInformers takes the shared informers; capacities come from a factory that
// is restricted to our own objects.
func (c *core) useInformers(all, own informers.SharedInformerFactory) error {
	c.claims = all.Core().V1().PersistentVolumeClaims().Informer()
	c.volumes = all.Core().V1().PersistentVolumes().Informer()
	c.classes = all.Storage().V1().StorageClasses().Informer()
	c.nodes = all.Core().V1().Nodes().Informer()
	c.capacities = own.Storage().V1().CSIStorageCapacities().Informer()
	c.pods = unscheduledPods(all)
	c.volumeLister = all.Core().V1().PersistentVolumes().Lister()
	c.classLister = all.Storage().V1().StorageClasses().Lister()
	c.nodeLister = all.Core().V1().Nodes().Lister()
	for _, informer := range c.informers() {
		if err := informer.SetTransform(stripManagedFields); err != nil {
			return fmt.Errorf("prepare informer: %w", err)
		}
	}
	if err := c.pods.SetTransform(claimsOnly); err != nil {
		return fmt.Errorf("prepare informer: %w", err)
	}
	if err := c.volumes.AddIndexers(handleIndexer()); err != nil {
		return fmt.Errorf("prepare informer: %w", err)
	}
	err := c.claims.AddIndexers(cache.Indexers{byUID: func(obj any) ([]string, error) {
		claim, ok := obj.(*v1.PersistentVolumeClaim)
		if !ok {
			return nil, nil
		}
		return []string{string(claim.UID)}, nil
	}, bySource: sourceIndexer})
	if err != nil {
		return fmt.Errorf("prepare informer: %w", err)
	}
	return nil
}

func (c *core) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.claims, c.volumes, c.classes, c.nodes, c.capacities, c.pods}
}

// stripManagedFields drops what we never read and what is much of an object's
// size. It changes the object before any cache holds it.
func stripManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func (c *core) synced() bool {
	for _, informer := range c.informers() {
		if !informer.HasSynced() {
			return false
		}
	}
	return true
}

// claim returns the claim of that UID as the cache has it, or nil.
func (c *core) claim(uid string) *v1.PersistentVolumeClaim {
	objs, err := c.claims.GetIndexer().ByIndex(byUID, uid)
	if err != nil || len(objs) == 0 {
		return nil
	}
	claim, _ := objs[0].(*v1.PersistentVolumeClaim)
	return claim
}

// clonesOf returns the claims that are, or are to be, made of a claim, which is
// given as namespace/name.
func (c *core) clonesOf(source string) []*v1.PersistentVolumeClaim {
	objs, err := c.claims.GetIndexer().ByIndex(bySource, source)
	if err != nil {
		return nil
	}
	var out []*v1.PersistentVolumeClaim
	for _, obj := range objs {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok {
			out = append(out, claim)
		}
	}
	return out
}

// allClaims returns every claim in the cache.
func (c *core) allClaims() []*v1.PersistentVolumeClaim {
	var out []*v1.PersistentVolumeClaim
	for _, obj := range c.claims.GetStore().List() {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok {
			out = append(out, claim)
		}
	}
	return out
}

// ourClass returns the claim's StorageClass when that is one of ours.
func (c *core) ourClass(name string) (*storagev1.StorageClass, bool) {
	class, err := c.classLister.Get(name)
	if err != nil || class.Provisioner != names.Driver {
		return nil, false
	}
	return class, true
}

// ourClasses returns every StorageClass of ours.
func (c *core) ourClasses() []*storagev1.StorageClass {
	var out []*storagev1.StorageClass
	for _, obj := range c.classes.GetStore().List() {
		if class, ok := obj.(*storagev1.StorageClass); ok && class.Provisioner == names.Driver {
			out = append(out, class)
		}
	}
	return out
}

// waiters are keys of a queue that wait for a node to connect.
type waiters struct {
	mu     sync.Mutex
	byNode map[string]map[string]struct{}
}

// wait notes that key is to be looked at again when the node connects.
func (w *waiters) wait(node, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNode == nil {
		w.byNode = map[string]map[string]struct{}{}
	}
	if w.byNode[node] == nil {
		w.byNode[node] = map[string]struct{}{}
	}
	w.byNode[node][key] = struct{}{}
}

// forget notes that key waits for no node any more: its work is done.
func (w *waiters) forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, keys := range w.byNode {
		if delete(keys, key); len(keys) == 0 {
			delete(w.byNode, node)
		}
	}
}

// take returns the keys that wait for a node, and forgets them.
func (w *waiters) take(node string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := sortedKeys(w.byNode[node])
	delete(w.byNode, node)
	return keys
}
