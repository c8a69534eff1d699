package controller

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// scopedInformers lends our informers of claims and volumes to a library that
// adds event handlers and never removes them: release does. Other informers of
// the factory are lent as they are.
type scopedInformers struct {
	informers.SharedInformerFactory

	mu       sync.Mutex
	handlers []scopedHandler
}

// scopedHandler is a handler that was added.
type scopedHandler struct {
	cache.ResourceEventHandler
	ofClaims bool
	remove   func()
}

func newScopedInformers(all informers.SharedInformerFactory) *scopedInformers {
	return &scopedInformers{SharedInformerFactory: all}
}

// release removes every handler that was added through s.
func (s *scopedInformers) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.handlers {
		h.remove()
	}
	s.handlers = nil
}

// again has the library look at a claim that did not change. Our informers do not resync, by
// which the library would.
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

// scopedInformer remembers the handlers that are added to it.
type scopedInformer struct {
	cache.SharedIndexInformer
	s        *scopedInformers
	ofClaims bool
}

func (i scopedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithResyncPeriod(h, 0)
}

func (i scopedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	r, err := i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(h, resync)
	if err == nil {
		i.s.mu.Lock()
		defer i.s.mu.Unlock()
		i.s.handlers = append(i.s.handlers, scopedHandler{h, i.ofClaims, func() { _ = i.RemoveEventHandler(r) }})
	}
	return r, err
}
