package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/workloop"
)

const (
	// taintWorkers is how many nodes are worked on at once.
	taintWorkers = 8
	// taintRetryMin and taintRetryMax are the pauses between two looks at a
	// node whose agent is not ready. What usually ends the wait is an event.
	taintRetryMin = 100 * time.Millisecond
	taintRetryMax = 5 * time.Second
)

// untainter removes the taint names.TaintAgentNotReady, of whatever value and
// effect, from nodes that are ready for Pods with volumes. A node is, when
//
//   - its agent is connected and has reported;
//   - for every StorageClass of ours there is published what should be: the
//     room, or nothing where the node does not have the device class;
//   - it has the topology label, by which alone the scheduler can match what
//     is published to the node, and which the kubelet sets when the node plugin
//     has registered.
//
// It adds the taint to no node: that is for whoever makes the nodes.
type untainter struct {
	*core
	publisher *publisher
	nodeLoop  *workloop.Loop[string] // by name

	mu sync.Mutex
	// waiting is why nodes still carry the taint, by node.
	waiting map[string]string
}

// errStillTainted has a node looked at again.
var errStillTainted = errors.New("the node is not ready for Pods with volumes")

func newUntainter(c *core, p *publisher) *untainter {
	u := &untainter{core: c, publisher: p, waiting: map[string]string{}}
	u.nodeLoop = workloop.New(workloop.Options[string]{
		Name: "taints", Parallel: taintWorkers, RetryMin: taintRetryMin, RetryMax: taintRetryMax,
		Work: func(ctx context.Context, node string) (time.Duration, error) {
			if !u.sync(ctx, node) {
				return 0, errStillTainted
			}
			return 0, nil
		},
	})
	return u
}

// run works until ctx is done. The caches must have synced.
func (u *untainter) run(ctx context.Context) error {
	defer u.metrics.tainted.Set(0)
	look := func(obj any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			u.nodeLoop.Add(name)
		}
	}
	nodes, err := u.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }, DeleteFunc: look,
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer func() { _ = u.nodes.RemoveEventHandler(nodes) }()
	capacities, err := u.capacities.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: u.capacityChanged, UpdateFunc: func(_, obj any) { u.capacityChanged(obj) },
	})
	if err != nil {
		return fmt.Errorf("watch capacities: %w", err)
	}
	defer func() { _ = u.capacities.RemoveEventHandler(capacities) }()
	u.nodeLoop.Run(ctx)
	return nil
}

// nodeChanged is told that a node connected or reported.
func (u *untainter) nodeChanged(node string) { u.nodeLoop.Add(node) }

func (u *untainter) capacityChanged(obj any) {
	if c, ok := obj.(*storagev1.CSIStorageCapacity); ok {
		if node := topologyNode(c); node != "" {
			u.nodeLoop.Add(node)
		}
	}
}

// sync looks at one node, and tells whether nothing is left to do there.
func (u *untainter) sync(ctx context.Context, name string) (done bool) {
	node, err := u.nodeLister.Get(name)
	if err != nil || !slices.ContainsFunc(node.Spec.Taints, agentNotReady) {
		u.note(name, "")
		return true
	}
	if why := u.unready(ctx, node); why != nil {
		u.note(name, why.Error())
		return false
	}
	if err := u.untaint(ctx, node); err != nil {
		if ctx.Err() == nil {
			u.note(name, "the taint could not be removed: "+err.Error())
		}
		return false
	}
	u.metrics.untainted.Inc()
	u.log.Info("start-up taint removed", "node", name)
	u.note(name, "")
	return true
}

// note keeps why a node is still tainted ("" for a node that is not), and logs
// each reason once.
func (u *untainter) note(node, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if why == "" {
		delete(u.waiting, node)
	} else if u.waiting[node] != why {
		u.waiting[node] = why
		u.log.Info("start-up taint stays", "node", node, "reason", why)
	}
	u.metrics.tainted.Set(float64(len(u.waiting)))
}

// unready says why a node is not ready for Pods with volumes, or nil.
func (u *untainter) unready(ctx context.Context, node *v1.Node) error {
	view, ok := u.fleet.View(node.Name)
	switch {
	case !ok || !view.Connected:
		return errors.New("its agent is not connected")
	case !view.Reported():
		return errors.New("its agent has not reported yet")
	case node.Labels[names.TopologyNode] != node.Name:
		return fmt.Errorf("its kubelet has not set the label %s yet: the node plugin is not registered", names.TopologyNode)
	}
	for _, class := range u.ourClasses() {
		if err := u.publisher.published(ctx, capacityKey{node: node.Name, class: class.Name}); err != nil {
			return fmt.Errorf("its capacity in StorageClass %s is not published: %w", class.Name, err)
		}
	}
	return nil
}

func agentNotReady(t v1.Taint) bool { return t.Key == names.TaintAgentNotReady }

// untaint removes the taint, and nothing else: where the node's taints are not
// those that the cache shows any more, the patch fails and is made again.
func (u *untainter) untaint(ctx context.Context, node *v1.Node) error {
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), agentNotReady)
	const path = "/spec/taints"
	change := map[string]any{"op": "replace", "path": path, "value": left}
	if len(left) == 0 {
		change = map[string]any{"op": "remove", "path": path}
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": node.UID},
		{"op": "test", "path": path, "value": node.Spec.Taints},
		change,
	})
	if err != nil {
		return fmt.Errorf("remove taint: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = u.client.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the controller may not patch nodes, see deploy/components/startup-taint: %w", err)
	}
	return err
}
