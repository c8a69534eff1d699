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

// inFlight is what claims take that have a node, while its published capacity does not show them yet. Without it, a
// scheduler that fills one node after the other gives each more claims than fit, until the capacity of the first of
// them is published. It is safe for concurrent use.
type inFlight struct {
	mu sync.Mutex
	// byCapacity are the claims that were placed by a CSIStorageCapacity object, in their order.
	byCapacity map[cache.ObjectName][]placed
	// capacityOf is the object of each claim.
	capacityOf map[types.UID]cache.ObjectName
}

type placed struct {
	claim types.UID
	bytes int64
}

// newInFlight follows the capacity and the PersistentVolumes of the cluster, for as long as their informers run. A claim
// that has one is shown. The scheduler tries Pods again at the events that come after that.
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

// add notes claims that were given a node.
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

// forget notes that a claim has its PersistentVolume, or no node any more.
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

// published notes a change of an object. What it shows less is taken for the claims that were placed first. If another
// scheduler's claims took it, some may be sent to a node that is full, as without inFlight.
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

// left is an object without what the claims take that it does not show.
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

// count returns how many claims were placed by an object that does not show them yet.
func (f *inFlight) count(capacity *storagev1.CSIStorageCapacity) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byCapacity[cache.MetaObjectToName(capacity)])
}

// total is how many bytes an object shows.
func total(capacity *storagev1.CSIStorageCapacity) int64 {
	shown := cmp.Or(capacity.Capacity, capacity.MaximumVolumeSize, &resource.Quantity{})
	return shown.Value()
}

func requested(claim *v1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}
