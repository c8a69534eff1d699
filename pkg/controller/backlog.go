package controller

import (
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// backlogPatience is how long a volume may count as waiting for the PV
// controller. What takes longer waits for something else.
const backlogPatience = 10 * time.Second

// backlog tells whether the PV controller is behind with the volumes it has
// been told of. It looks at all volumes, not at ours alone.
//
// The PV controller takes in volumes with one worker, and that worker waits
// for a rate-limited write whenever a volume's claim was deleted and the volume
// becomes Released. While such volumes are waiting, new ones wait behind them,
// and the controller would call a claim Lost that is bound to one of those. So
// nothing is bound by us then.
type backlog struct {
	now func() time.Time

	mu    sync.Mutex
	since map[string]time.Time // by the name of a volume whose claim is gone
}

// watch keeps the backlog current until the returned function is called.
func (b *backlog) watch(c *core) (stop func(), err error) {
	claims, err := c.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if claim := deletedClaim(obj); claim != nil {
			if pv, err := c.volumeLister.Get(claim.Spec.VolumeName); err == nil && claimedBy(pv, claim) && !isReleased(pv) {
				b.add(pv.Name)
			}
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	volumes, err := c.volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if pv, ok := obj.(*v1.PersistentVolume); ok && isReleased(pv) {
				b.remove(pv.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				b.remove(name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch volumes: %w", err)
	}
	return func() {
		_ = c.claims.RemoveEventHandler(claims)
		_ = c.volumes.RemoveEventHandler(volumes)
	}, nil
}

func (b *backlog) add(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == nil {
		b.since = map[string]time.Time{}
	}
	b.since[name] = b.now()
}

func (b *backlog) remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.since, name)
}

// behind tells whether the PV controller is to be waited for.
func (b *backlog) behind() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for name, since := range b.since {
		if now.Sub(since) < backlogPatience {
			return true
		}
		delete(b.since, name)
	}
	return false
}

// deletedClaim returns the claim that a delete event is about, or nil.
func deletedClaim(obj any) *v1.PersistentVolumeClaim {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	claim, _ := obj.(*v1.PersistentVolumeClaim)
	return claim
}

// claimedBy tells whether a volume is bound to this very claim.
func claimedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// isReleased tells whether the PV controller has noted that the claim is gone.
func isReleased(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}
