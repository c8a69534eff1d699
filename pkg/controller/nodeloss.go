package controller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
)

const (
	// nodeLossGrace is how long a Node object must be gone before its volumes
	// are given up: a node that is registered anew is not a lost one.
	nodeLossGrace = time.Minute
	// nodeLossPass is how often lost nodes are looked for without being told.
	nodeLossPass = 30 * time.Second
)

// losses remembers since when Node objects are gone.
type losses struct {
	grace time.Duration

	mu    sync.Mutex
	since map[string]time.Time
}

// nodeLost tells whether a node is lost for good: an administrator said so by
// the taint node.kubernetes.io/out-of-service, or its Node object has been gone
// for nodeLossGrace. A node whose lvmd is connected is alive, whatever else is
// said. NotReady alone means nothing. An error means that nobody knows.
func (c *core) nodeLost(ctx context.Context, name string) (bool, error) {
	if view, ok := c.fleet.View(name); ok && view.Connected {
		c.losses.forget(name)
		return false, nil
	}
	if node, err := c.nodeLister.Get(name); err == nil {
		c.losses.forget(name)
		return outOfService(node), nil
	}
	gone, err := c.nodeGone(ctx, name)
	if err != nil || !gone {
		return false, err
	}
	return c.losses.lasts(name, c.now()), nil
}

// nodeGone tells whether a node is not in the cluster any more, so that what waits
// for it must not go on waiting: its Node object is absent, from the cache and from
// the API server, or an administrator declared it out of service. What is given up
// by that alone can be found again, should the node return. An error means that
// nobody knows.
func (c *core) nodeGone(ctx context.Context, name string) (bool, error) {
	node, err := c.nodeLister.Get(name)
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		node, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look for node %s: %w", name, err)
	}
	return outOfService(node), nil
}

// watchGone calls gone with the name of every node that nodeGone comes to be true
// of, until stop is called.
func (c *core) watchGone(gone func(node string)) (stop func(), err error) {
	handler, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			before, okBefore := old.(*v1.Node)
			after, okAfter := now.(*v1.Node)
			if okBefore && okAfter && outOfService(after) && !outOfService(before) {
				gone(after.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				gone(name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return func() { _ = c.nodes.RemoveEventHandler(handler) }, nil
}

func outOfService(node *v1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

func (l *losses) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, node)
}

// retain forgets the nodes that do not matter any more.
func (l *losses) retain(matters func(node string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.since, func(node string, _ time.Time) bool { return !matters(node) })
}

// lasts notes that the Node object is gone, and tells whether it has been for
// long enough.
func (l *losses) lasts(node string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == nil {
		l.since = map[string]time.Time{}
	}
	if _, ok := l.since[node]; !ok {
		l.since[node] = now
	}
	return now.Sub(l.since[node]) >= l.grace
}

// releaser gives up bound claims whose node is lost, where their class says so.
//
// Generic ephemeral volumes need nothing from it: their claims go with their
// Pods, which Kubernetes removes from lost nodes. Other claims are kept by
// default. What was Released in any way is the deleter's.
type releaser struct {
	*core
	kick chan struct{}
	// told are the Pods without a node, by UID, that were told what becomes of the
	// volume that they wait for, by volume. Its other users were told before them.
	told map[string]map[types.UID]struct{}
}

func newReleaser(c *core) *releaser {
	return &releaser{core: c, kick: make(chan struct{}, 1), told: map[string]map[types.UID]struct{}{}}
}

// run works until ctx is done. The caches must have synced.
func (r *releaser) run(ctx context.Context) error {
	stop, err := r.watchGone(func(string) {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	ticker := time.NewTicker(min(nodeLossPass, max(r.losses.grace, 10*time.Millisecond)))
	defer ticker.Stop()
	for {
		r.pass(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.kick:
		}
	}
}

// pass looks at every bound volume of ours once.
func (r *releaser) pass(ctx context.Context) {
	lost, listed := map[string]bool{}, podLists{}
	named, volumes := map[string]bool{}, map[string]bool{} // nodes that volumes name, and these
	for _, obj := range r.volumes.GetStore().List() {
		pv, ok := obj.(*v1.PersistentVolume)
		if !ok || !isOurs(pv) {
			continue
		}
		node, ok := nodeOf(pv)
		if !ok {
			continue
		}
		named[node], volumes[pv.Name] = true, true
		if pv.Status.Phase != v1.VolumeBound || pv.Spec.ClaimRef == nil {
			continue
		}
		if _, known := lost[node]; !known {
			is, err := r.nodeLost(ctx, node)
			if err != nil {
				if ctx.Err() == nil {
					r.log.Warn("cannot tell whether a node is lost, trying on", "node", node, "error", err)
				}
				return
			}
			lost[node] = is
		}
		if lost[node] {
			r.give(ctx, listed, pv, node)
		} else {
			delete(r.told, pv.Name)
		}
	}
	r.losses.retain(func(node string) bool { return named[node] })
	maps.DeleteFunc(r.told, func(volume string, _ map[types.UID]struct{}) bool { return !volumes[volume] })
}

// give deletes the claim of a volume on a lost node, or says what becomes of it.
func (r *releaser) give(ctx context.Context, listed podLists, pv *v1.PersistentVolume, node string) {
	claim := r.claim(string(pv.Spec.ClaimRef.UID))
	if claim == nil || claim.DeletionTimestamp != nil {
		return
	}
	why := fmt.Sprintf("node %s, which holds the volume, is lost", node)
	switch {
	case ownerPod(claim) != nil:
		r.tell(ctx, listed, pv, claim, node, why+"; the volume goes with its Pod, which Kubernetes removes from such a node")
	case pv.Annotations[names.ParamOnNodeLoss] != names.NodeLossRecreate:
		r.tell(ctx, listed, pv, claim, node, why+"; the claim is kept for a node that comes back. Delete the claim to give the data up")
	default:
		r.giveUp(ctx, pv, claim, why)
	}
}

// tell tells those who use a claim, each once: when the loss is found, and Pods that
// are made in place of those on the lost node, as those of a StatefulSet, later.
func (r *releaser) tell(ctx context.Context, listed podLists, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, node, message string) {
	var users []runtime.Object
	told := r.told[pv.Name]
	if told == nil {
		told = map[types.UID]struct{}{}
		r.told[pv.Name] = told
		users = r.usersOf(ctx, listed, claim, node)
	}
	for _, pod := range r.waitersFor(claim) {
		if _, before := told[pod.UID]; !before {
			told[pod.UID] = struct{}{}
			users = append(users, pod)
		}
	}
	for _, user := range users {
		r.recorder.Event(user, v1.EventTypeWarning, reasonNodeLost, message)
	}
}

// giveUp deletes the claim of a volume that its class gives up, and says why.
func (c *core) giveUp(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, why string) {
	c.recorder.Event(claim, v1.EventTypeWarning, reasonNodeLost, why+"; the claim is deleted, as its class asks for, so that it can be made again elsewhere")
	log := c.log.With("claim", claim.Namespace+"/"+claim.Name, "volume", pv.Name, "why", why)
	log.Info("deleting a claim whose class gives it up")
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(callCtx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		log.Warn("a claim that is given up could not be deleted, trying on", "error", err)
	}
}
