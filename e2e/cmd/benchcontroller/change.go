package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/e2e/carve"
)

// change has nodes change, and returns how long each change took to be published, sorted.
func (c *cluster) change(ctx context.Context) ([]time.Duration, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(carveNamespace))
	informer := factory.Storage().V1().CSIStorageCapacities().Informer()
	var mu sync.Mutex
	seen := map[string]time.Time{}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
		before, okBefore := old.(*storagev1.CSIStorageCapacity)
		after, okAfter := now.(*storagev1.CSIStorageCapacity)
		if !okBefore || !okAfter || before.Capacity.Cmp(*after.Capacity) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if node := after.NodeTopology.MatchLabels[topologyKey]; seen[node].IsZero() {
			seen[node] = time.Now()
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("follow capacity: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	factory.Start(watching.Done())
	factory.WaitForCacheSync(watching.Done())
	var changed map[string]time.Time
	if err := c.askFleet(ctx, http.MethodPost, "/change", &changed); err != nil {
		return nil, err
	}
	var took []time.Duration
	err = carve.Until(ctx, waitTimeout, "all changes are published", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		took = nil
		for node, at := range changed {
			if !seen[node].IsZero() {
				took = append(took, seen[node].Sub(at))
			}
		}
		if len(took) < len(changed) {
			return fmt.Errorf("%d of %d", len(took), len(changed))
		}
		return nil
	})
	slices.Sort(took)
	return took, err
}
