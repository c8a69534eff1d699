package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// NodeLossGrace is how long a Node object must be gone before its volumes
// are given up: a node that is registered again is not a lost one.
const NodeLossGrace = time.Minute

// AgentGrace is how long a node must have been without an agent's Pod before it counts as a node that is to have none:
// longer than a DaemonSet takes to make the next one, and, with awayGrace, shorter than the alert CarveNodeCutOff waits.
const AgentGrace = 2 * time.Minute

// absences are those of Node objects, and of agents.
type absences struct {
	losses
	// MayHaveAgent reports whether a node has an agent of ours, or is to have one; nil for always. Agentless are the
	// nodes of which it reports that they have not.
	MayHaveAgent func(node string) bool
	Agentless    losses
}

// losses remembers since when Node objects, or nodes' agents, are gone.
type losses struct {
	Grace time.Duration

	mu   sync.Mutex
	gone map[string]time.Time
}

// NodeLost reports whether a node is lost for good: an administrator said so by
// the taint node.kubernetes.io/out-of-service, or its Node object has been gone
// for NodeLossGrace. A node whose lvmd is connected is not lost, whatever else is
// said. NotReady alone means nothing. An error means that it is not known.
func (c *Cluster) NodeLost(ctx context.Context, name string) (bool, error) {
	if view, ok := c.Fleet.View(name); ok && view.Connected {
		c.Losses.forget(name)
		return false, nil
	}
	if node, err := c.NodeLister.Get(name); err == nil {
		c.Losses.forget(name)
		return OutOfService(node), nil
	}
	gone, err := c.NodeGone(ctx, name)
	if err != nil || !gone {
		return false, err
	}
	return c.Losses.lasts(name, c.Now()), nil
}

// NodeGone reports whether a node is not in the cluster any more, so that what waits
// for it must not go on waiting: its Node object is absent, from the cache and from
// the API server, or an administrator declared it out of service. What is given up
// by that alone can be found again, should the node return. An error means that
// it is not known.
func (c *Cluster) NodeGone(ctx context.Context, name string) (bool, error) {
	node, err := c.NodeLister.Get(name)
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, APITimeout)
		defer cancel()
		node, err = c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look for node %s: %w", name, err)
	}
	return OutOfService(node), nil
}

// Retired reports whether a node is to have no agent any more, as where the DaemonSet selects it no longer: it is not
// connected, and has had no agent's Pod for AgentGrace. One whose agent crashes has its Pod. Nothing is provisioned on
// the node until an agent connects from there. Its volumes are not given up by that.
func (c *Cluster) Retired(name string) bool {
	view, ok := c.Fleet.View(name)
	if ok && view.Connected || c.Losses.MayHaveAgent == nil || c.Losses.MayHaveAgent(name) {
		c.Losses.Agentless.forget(name)
		return false
	}
	return c.Losses.Agentless.lasts(name, c.Now())
}

// OnGone is the handler that calls gone with the name of every node that NodeGone comes to be
// true of.
func (c *Cluster) OnGone(gone func(node string)) Handler {
	return On(c.Nodes, cache.TypedResourceEventHandlerFuncs[*v1.Node]{
		UpdateFunc: func(before, after *v1.Node) {
			if OutOfService(after) && !OutOfService(before) {
				gone(after.Name)
			}
		},
		DeleteFunc: func(node cache.DeletedObject[*v1.Node]) { gone(node.GetName()) },
	})
}

// OutOfService reports whether an administrator declared a node out of service, by the taint
// node.kubernetes.io/out-of-service.
func OutOfService(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == v1.TaintNodeOutOfService })
}

func (l *losses) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gone, node)
}

// Retain forgets the nodes that do not matter any more. Those that went a moment ago stay: a snapshot, which
// is in no cache, may be deleted with its node.
func (l *losses) Retain(now time.Time, matters func(node string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.gone, func(node string, since time.Time) bool { return !matters(node) && now.Sub(since) > 10*l.Grace })
}

// lasts notes that the Node object is gone, and reports whether it has been for
// long enough.
func (l *losses) lasts(node string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone == nil {
		l.gone = map[string]time.Time{}
	}
	if _, ok := l.gone[node]; !ok {
		l.gone[node] = now
	}
	return now.Sub(l.gone[node]) >= l.Grace
}

// DeleteLostClaim deletes the claim of a volume that its class gives up, and says why. It does nothing
// if, at the API server, the volume is not that claim's, or is not to be given up.
func (c *Cluster) DeleteLostClaim(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, why string) {
	log := c.Log.With("claim", claim.Namespace+"/"+claim.Name, "volume", pv.Name, "why", why)
	now, holder, err := c.ReadVolume(ctx, pv)
	if err != nil && ctx.Err() == nil {
		log.Warn("failed to read a claim that is given up; will retry", "error", err)
	}
	if err != nil || holder == nil || holder.UID != claim.UID || holder.Spec.VolumeName != now.Name || now.Annotations[names.ParamOnNodeLoss] != names.NodeLossRecreate {
		return
	}
	callCtx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	err = c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(callCtx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	switch {
	case err == nil:
		c.Recorder.Event(claim, v1.EventTypeWarning, ReasonNodeLost, why+"; the claim is deleted, as its class asks for, so that it can be made again elsewhere")
		log.Info("deleted a claim whose class gives it up")
	case !IsOutdated(err) && ctx.Err() == nil:
		log.Warn("a claim that is given up could not be deleted, trying on", "error", err)
	}
}

// DeviceClassOn returns the name by which a node knows a device class, of which the
// empty one is its default.
func (c *Cluster) DeviceClassOn(node, class string) (string, bool) {
	if class != "" {
		return class, true
	}
	view, ok := c.Fleet.View(node)
	if !ok {
		return "", false
	}
	on, ok := view.Class("")
	return on.GetName(), ok
}

// NodeEvent writes an Event on a node.
func (c *Cluster) NodeEvent(node, kind, reason, message string) {
	if object, err := c.NodeLister.Get(node); err == nil {
		c.Recorder.Event(object, kind, reason, message)
	}
}

// Nodes returns the nodes whose Node object is known to be gone.
func (l *losses) Nodes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.gone))
}

// DeviceClassOf returns the name by which a node knows the device class of a
// StorageClass, or false where it has none.
func (c *Cluster) DeviceClassOf(node, storageClass string) (string, bool) {
	class, ours := c.OurClass(storageClass)
	if !ours {
		return "", false
	}
	params, err := spec.ParseClass(class)
	if err != nil {
		return "", false
	}
	return c.DeviceClassOn(node, params.DeviceClass)
}
