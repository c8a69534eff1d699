package capacity

import (
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// unseenMax is for how long an object is taken to exist that was created here and that
	// the informer's cache has not had. After it the API server decides: the object may have
	// been deleted again before the informer had seen it.
	unseenMax = time.Minute
	// writtenMax is of how many objects is known how they were written.
	writtenMax = 1 << 17
)

// objects has the capacity objects as they are: as in the informer's cache, or as they were
// written here where that is newer. It may be used from several goroutines.
type objects struct {
	informer cache.Store
	written  cache.MutationCache
	now      func() time.Time

	mu sync.Mutex
	// unseen is when an object was first written that the informer's cache did not have.
	unseen map[string]time.Time
}

func newObjects(informer cache.Store, now func() time.Time) *objects {
	return &objects{
		informer: informer, now: now, unseen: map[string]time.Time{},
		written: cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.Background(), informer,
			cache.MutationCacheOptions{TTL: unseenMax, IncludeAdds: true, MaxCacheSize: writtenMax}),
	}
}

// get returns an object by its namespace and name, or nil.
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
		return nil // the API server says at the next write whether there is one
	}
	// The first read of an object that the informer's cache does not have takes it out of
	// written (client-go v0.37), and the next one would have it created once more.
	o.written.Mutation(object)
	return object
}

// wrote notes an object as the API server returned it.
func (o *objects) wrote(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := object.Namespace + "/" + object.Name
	if _, seen, _ := o.informer.GetByKey(key); !seen {
		o.unseen[key] = o.now()
	}
	o.written.Mutation(object)
}

// seen notes that the informer's cache has an object.
func (o *objects) seen(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unseen, object.Namespace+"/"+object.Name)
	o.written.OnAddOrUpdate(object)
}

// deleted notes that an object is gone.
func (o *objects) deleted(object *storagev1.CSIStorageCapacity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unseen, object.Namespace+"/"+object.Name)
	o.written.OnDelete(object)
}
