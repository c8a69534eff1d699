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
	handlers []func()
	// ofClaims are the handlers of claims.
	ofClaims []cache.ResourceEventHandler
}

func newScopedInformers(all informers.SharedInformerFactory) *scopedInformers {
	return &scopedInformers{SharedInformerFactory: all}
}

// release removes every handler that was added through s.
func (s *scopedInformers) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, remove := range s.handlers {
		remove()
	}
	s.handlers = nil
}

// again has the library look at a claim that did not change. Our informers do not resync, by
// which the library would.
func (s *scopedInformers) again(claim *v1.PersistentVolumeClaim) {
	s.mu.Lock()
	handlers := slices.Clone(s.ofClaims)
	s.mu.Unlock()
	for _, h := range handlers {
		h.OnAdd(claim, false)
	}
}

func (s *scopedInformers) Core() coreinformers.Interface {
	return scopedGroup{s.SharedInformerFactory.Core(), s}
}

type scopedGroup struct {
	coreinformers.Interface
	s *scopedInformers
}

func (g scopedGroup) V1() corev1.Interface { return scopedVersion{g.Interface.V1(), g.s} }

type scopedVersion struct {
	corev1.Interface
	s *scopedInformers
}

func (v scopedVersion) PersistentVolumes() corev1.TypedPersistentVolumeInformer {
	return scopedVolumes{v.Interface.PersistentVolumes(), v.s}
}

func (v scopedVersion) PersistentVolumeClaims() corev1.TypedPersistentVolumeClaimInformer {
	return scopedClaims{v.Interface.PersistentVolumeClaims(), v.s}
}

type scopedVolumes struct {
	corev1.TypedPersistentVolumeInformer
	s *scopedInformers
}

func (i scopedVolumes) Informer() cache.SharedIndexInformer {
	return scopedInformer{i.TypedPersistentVolumeInformer.Informer(), i.s}
}

type scopedClaims struct {
	corev1.TypedPersistentVolumeClaimInformer
	s *scopedInformers
}

func (i scopedClaims) Informer() cache.SharedIndexInformer {
	return scopedClaimInformer{scopedInformer{i.TypedPersistentVolumeClaimInformer.Informer(), i.s}}
}

// scopedClaimInformer remembers handlers for again, too.
type scopedClaimInformer struct{ scopedInformer }

func (i scopedClaimInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.s.mu.Lock()
	i.s.ofClaims = append(i.s.ofClaims, h)
	i.s.mu.Unlock()
	return i.scopedInformer.AddEventHandlerWithResyncPeriod(h, resync)
}

// scopedInformer remembers the handlers that are added to it.
type scopedInformer struct {
	cache.SharedIndexInformer
	s *scopedInformers
}

func (i scopedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.remember(i.SharedIndexInformer.AddEventHandler(h))
}

func (i scopedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.remember(i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(h, resync))
}

func (i scopedInformer) remember(r cache.ResourceEventHandlerRegistration, err error) (cache.ResourceEventHandlerRegistration, error) {
	if err == nil {
		i.s.mu.Lock()
		defer i.s.mu.Unlock()
		i.s.handlers = append(i.s.handlers, func() { _ = i.RemoveEventHandler(r) })
	}
	return r, err
}
