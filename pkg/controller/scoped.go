package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// libraryResync is the period after which a library sees its unfinished claims again.
const libraryResync = 10 * time.Minute

// scopedInformers lends our informers of claims and volumes to a library that never removes
// its event handlers: release does. Only the library sees its writes into their stores. Other
// informers of the factory are lent unchanged.
//
// Initially the library sees only claims that need it, instead of queueing every claim of the
// cluster at each change of leaders. It sees all later changes.
type scopedInformers struct {
	informers.SharedInformerFactory
	// waits reports whether the library has work for a claim.
	waits func(*v1.PersistentVolumeClaim) bool

	mu       sync.Mutex
	handlers []scopedHandler
}

type scopedHandler struct {
	cache.ResourceEventHandler
	ofClaims bool
	remove   func()
}

func newScopedInformers(all informers.SharedInformerFactory, waits func(*v1.PersistentVolumeClaim) bool) *scopedInformers {
	return &scopedInformers{SharedInformerFactory: all, waits: waits}
}

func (s *scopedInformers) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.handlers {
		h.remove()
	}
	s.handlers = nil
}

// resync shows the waiting claims to the library every period: our informers do not resync.
func (s *scopedInformers) resync(ctx context.Context, period time.Duration, claims func() []*v1.PersistentVolumeClaim) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
		for _, claim := range claims() {
			if s.waits(claim) {
				s.again(claim)
			}
		}
	}
}

func (s *scopedInformers) again(claim *v1.PersistentVolumeClaim) {
	s.mu.Lock()
	handlers := slices.Clone(s.handlers)
	s.mu.Unlock()
	for _, h := range handlers {
		if h.ofClaims {
			h.OnAdd(claim, false)
		}
	}
}

func (s *scopedInformers) Core() coreinformers.Interface {
	return scopedCore{s.SharedInformerFactory.Core().V1(), s}
}

type scopedCore struct {
	corev1.Interface
	s *scopedInformers
}

func (c scopedCore) V1() corev1.Interface { return c }

func (c scopedCore) PersistentVolumes() corev1.TypedPersistentVolumeInformer {
	return scopedVolumes{c.Interface.PersistentVolumes(), c.s}
}

func (c scopedCore) PersistentVolumeClaims() corev1.TypedPersistentVolumeClaimInformer {
	return scopedClaims{c.Interface.PersistentVolumeClaims(), c.s}
}

type scopedVolumes struct {
	corev1.TypedPersistentVolumeInformer
	s *scopedInformers
}

func (i scopedVolumes) Informer() cache.SharedIndexInformer {
	return scopedInformer{i.TypedPersistentVolumeInformer.Informer(), i.s, false}
}

type scopedClaims struct {
	corev1.TypedPersistentVolumeClaimInformer
	s *scopedInformers
}

func (i scopedClaims) Informer() cache.SharedIndexInformer {
	return scopedInformer{i.TypedPersistentVolumeClaimInformer.Informer(), i.s, true}
}

type scopedInformer struct {
	cache.SharedIndexInformer
	s        *scopedInformers
	ofClaims bool
}

// GetStore returns a view of the store with the library's own writes.
func (i scopedInformer) GetStore() cache.Store {
	return &ownWrites{Store: i.SharedIndexInformer.GetStore(), written: map[string]any{}}
}

func (i scopedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithResyncPeriod(h, 0)
}

func (i scopedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	if i.ofClaims {
		h = waitingFirst{h, i.s.waits}
	}
	r, err := i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(h, resync)
	if err == nil {
		i.s.mu.Lock()
		defer i.s.mu.Unlock()
		i.s.handlers = append(i.s.handlers, scopedHandler{h, i.ofClaims, func() { _ = i.RemoveEventHandler(r) }})
	}
	return r, err
}

// waitingFirst drops initial claims that do not need the library.
type waitingFirst struct {
	cache.ResourceEventHandler
	waits func(*v1.PersistentVolumeClaim) bool
}

func (h waitingFirst) OnAdd(obj any, initial bool) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && initial && !h.waits(claim) {
		return
	}
	h.ResourceEventHandler.OnAdd(obj, initial)
}

// ownWrites is a store for a library that writes the API server's answers into it. The
// informer may already have a newer object, or have seen its deletion. So the store stays
// unchanged, and the library reads its own object until the informer's is as new.
type ownWrites struct {
	cache.Store

	mu      sync.Mutex
	written map[string]any
}

func (o *ownWrites) Update(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return fmt.Errorf("write into the store: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written[key] = obj
	return nil
}

func (o *ownWrites) GetByKey(key string) (obj any, exists bool, err error) {
	obj, exists, err = o.Store.GetByKey(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	own, wrote := o.written[key]
	switch {
	case !wrote || err != nil:
	case exists && isOlder(obj, own):
		return own, true, nil
	default:
		delete(o.written, key)
	}
	return obj, exists, err
}

func isOlder(one, other any) bool {
	a, errA := meta.Accessor(one)
	b, errB := meta.Accessor(other)
	if errA != nil || errB != nil || a.GetUID() != b.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}
