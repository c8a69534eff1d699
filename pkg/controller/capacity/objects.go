package capacity

import (
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// unseenMax is how long an object counts as existing after its creation here without the
	// informer having seen it. After that the API server decides: the object may have been deleted
	// before the informer saw it.
	unseenMax = time.Minute
	// writtenMax limits the number of remembered writes.
	writtenMax = 1 << 17
)

// objects returns the newer of the informer's and our own last version of each object. Its methods
// may be called concurrently.
type objects struct {
	informer cache.Store
	written  cache.MutationCache
	now      func() time.Time

	mu sync.Mutex
	// unseen is when an object was written that the informer's cache lacks.
	unseen map[string]time.Time
}

func newObjects(informer cache.Store, now func() time.Time) *objects {
	return &objects{
		informer: informer, now: now, unseen: map[string]time.Time{},
		written: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), informer,
			cache.MutationCacheOptions{TTL: unseenMax, IncludeAdds: true, MaxCacheSize: writtenMax}),
	}
}

func (o *objects) get(key string) *storagev1.CSIStorageCapacity {
	o.mu.Lock()
	defer o.mu.Unlock()
	found, _, err := o.written.GetByKey(key)
	object, ok := found.(*storagev1.CSIStorageCapacity)
	if !ok || err != nil {
		return nil
	}
	if _, seen, _ := o.informer.GetByKey(key); seen {
		return object
	}
	since, ok := o.unseen[key]
	if !ok || o.now().Sub(since) >= unseenMax {
		delete(o.unseen, key)
		return nil // the next write finds out
	}
	// Reading an object that the informer's cache lacks removes it from written (client-go v0.37).
	// Put it back, or the next sync would create it again.
	o.written.Mutation(object)
	return object
}

func (o *objects) wrote(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := object.Namespace + "/" + object.Name
	if _, seen, _ := o.informer.GetByKey(key); !seen {
		o.unseen[key] = o.now()
	}
	o.written.Mutation(object)
}

func (o *objects) seen(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unseen, object.Namespace+"/"+object.Name)
	o.written.OnAddOrUpdate(object)
}

func (o *objects) deleted(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unseen, object.Namespace+"/"+object.Name)
	o.written.OnDelete(object)
}
