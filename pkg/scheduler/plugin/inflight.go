package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
)

// inFlight holds the claims that have a node but do not show in its published capacity yet. Without
// it, a scheduler that fills one node after the other would overfill each until the node's capacity
// is published. Its methods may be called concurrently.
type inFlight struct {
	mu sync.Mutex
	// byCapacity holds the claims placed by a CSIStorageCapacity object, oldest first.
	byCapacity map[cache.ObjectName][]placed
	capacityOf map[types.UID]cache.ObjectName
}

type placed struct {
	claim types.UID
	bytes int64
}

// newInFlight follows capacity and PersistentVolumes while their informers run. A claim with a
// PersistentVolume is no longer in flight. The events that follow make the scheduler retry Pods.
func newInFlight(capacities, volumes cache.SharedIndexInformer) (*inFlight, error) {
	f := &inFlight{byCapacity: map[cache.ObjectName][]placed{}, capacityOf: map[types.UID]cache.ObjectName{}}
	_, err := capacities.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, now any) {
		a, isCapacity := before.(*storagev1.CSIStorageCapacity)
		b, alike := now.(*storagev1.CSIStorageCapacity)
		if isCapacity && alike {
			f.published(a, b)
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("follow CSIStorageCapacity objects: %w", err)
	}
	made := func(object any) {
		if volume, ok := object.(*v1.PersistentVolume); ok && volume.Spec.ClaimRef != nil {
			f.forget(volume.Spec.ClaimRef.UID)
		}
	}
	_, err = volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: made, UpdateFunc: func(_, now any) { made(now) }})
	if err != nil {
		return nil, fmt.Errorf("follow PersistentVolumes: %w", err)
	}
	return f, nil
}

func (f *inFlight) add(provisions []*volumebinding.DynamicProvision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range provisions {
		if p.NodeCapacity == nil { // the driver publishes none
			continue
		}
		f.forgetLocked(p.PVC.UID)
		capacity := cache.MetaObjectToName(p.NodeCapacity)
		f.byCapacity[capacity] = append(f.byCapacity[capacity], placed{p.PVC.UID, requested(p.PVC)})
		f.capacityOf[p.PVC.UID] = capacity
	}
}

// forget removes a claim that got its PersistentVolume or lost its node.
func (f *inFlight) forget(claim types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetLocked(claim)
}

func (f *inFlight) forgetLocked(claim types.UID) {
	capacity, ok := f.capacityOf[claim]
	if !ok {
		return
	}
	delete(f.capacityOf, claim)
	f.keep(capacity, slices.DeleteFunc(f.byCapacity[capacity], func(p placed) bool { return p.claim == claim }))
}

func (f *inFlight) keep(capacity cache.ObjectName, claims []placed) {
	if len(claims) == 0 {
		delete(f.byCapacity, capacity)
		return
	}
	f.byCapacity[capacity] = claims
}

// published removes the claims that explain a decrease of capacity, oldest first. If another
// scheduler's claims caused it, some claims may go to a full node, as without inFlight.
func (f *inFlight) published(before, now *storagev1.CSIStorageCapacity) {
	shown := total(before) - total(now)
	if shown <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	capacity := cache.MetaObjectToName(now)
	claims := f.byCapacity[capacity]
	for len(claims) > 0 && claims[0].bytes <= shown {
		shown -= claims[0].bytes
		delete(f.capacityOf, claims[0].claim)
		claims = claims[1:]
	}
	f.keep(capacity, claims)
}

// left returns a copy of the object without the space of claims in flight.
func (f *inFlight) left(capacity *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	f.mu.Lock()
	defer f.mu.Unlock()
	claims := f.byCapacity[cache.MetaObjectToName(capacity)]
	if len(claims) == 0 {
		return capacity
	}
	bytes := total(capacity)
	for _, p := range claims {
		bytes -= p.bytes
	}
	rest := resource.NewQuantity(max(0, bytes), resource.BinarySI)
	less := *capacity
	less.Capacity = rest
	if most := capacity.MaximumVolumeSize; most != nil && most.Cmp(*rest) > 0 {
		less.MaximumVolumeSize = rest
	}
	return &less
}

func (f *inFlight) count(capacity *storagev1.CSIStorageCapacity) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byCapacity[cache.MetaObjectToName(capacity)])
}

func total(capacity *storagev1.CSIStorageCapacity) int64 {
	shown := cmp.Or(capacity.Capacity, capacity.MaximumVolumeSize, &resource.Quantity{})
	return shown.Value()
}

func requested(claim *v1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}
