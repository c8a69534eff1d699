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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// NodeLossGrace is how long a Node object must be gone before its volumes are given up: the node
// may be registered again.
const NodeLossGrace = time.Minute

// AgentGrace is how long a node must lack an agent's Pod to count as Retired: longer than a
// DaemonSet takes to replace it, and, with awayGrace, shorter than the wait of the alert
// CarveNodeCutOff.
const AgentGrace = 2 * time.Minute

type absences struct {
	losses
	// MayHaveAgent reports whether a node has an agent of ours, or will have one; nil means always.
	// Agentless tracks the nodes for which it returns false.
	MayHaveAgent func(node string) bool
	Agentless    losses
}

// losses records when Node objects, or nodes' agents, disappeared.
type losses struct {
	Grace time.Duration

	mu   sync.Mutex
	gone map[string]time.Time
}

// NodeLost reports whether a node is lost for good: an administrator set the taint
// node.kubernetes.io/out-of-service, or its Node object has been gone for NodeLossGrace. A node
// whose lvmd is connected is never lost. NotReady alone means nothing. An error means unknown.
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

// NodeGone reports whether a node left the cluster, so that nothing should wait for it: its Node
// object is absent from the cache and from the API server, or an administrator declared it out of
// service. Give up on this alone only what can be found again if the node returns. An error means
// unknown.
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

// Retired reports whether a node will have no agent any longer, for example because the DaemonSet
// no longer selects it: it is not connected, and has had no agent's Pod for AgentGrace (a crashing
// agent has its Pod). Nothing is provisioned on the node until an agent connects from it. Its
// volumes are kept.
func (c *Cluster) Retired(name string) bool {
	view, ok := c.Fleet.View(name)
	if ok && view.Connected || c.Losses.MayHaveAgent == nil || c.Losses.MayHaveAgent(name) {
		c.Losses.Agentless.forget(name)
		return false
	}
	return c.Losses.Agentless.lasts(name, c.Now())
}

// OnGone returns a handler that calls gone with every node for which NodeGone becomes true.
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

// OutOfService reports whether the node has the taint node.kubernetes.io/out-of-service, which an
// administrator sets.
func OutOfService(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == v1.TaintNodeOutOfService })
}

func (l *losses) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gone, node)
}

// Retain forgets the nodes that no longer matter. It keeps recent losses: a snapshot, which no
// cache has, may be deleted with its node.
func (l *losses) Retain(now time.Time, matters func(node string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.gone, func(node string, since time.Time) bool { return !matters(node) && now.Sub(since) > 10*l.Grace })
}

// lasts records the loss of a node, and reports whether it has lasted for Grace.
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

// GivesUp reports whether the claim of a lost volume should be deleted: because its class asks for
// that, or, if it is a generic ephemeral volume, because its Pod has never been on a node and would
// wait forever. Kubernetes removes other Pods with such volumes, and the claims with them.
func (c *Cluster) GivesUp(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	if spec.OwnerPod(claim) != nil {
		return c.OwnerUnplaced(claim)
	}
	return pv.Annotations[names.ParamOnNodeLoss] == names.NodeLossRecreate
}

// readGivesUp is GivesUp by the API server's Pods.
func (c *Cluster) readGivesUp(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (bool, error) {
	owner := spec.OwnerPod(claim)
	if owner == nil {
		return c.GivesUp(pv, claim), nil
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	list, err := c.Client.CoreV1().Pods(owner.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, owner.Name).String()})
	if err != nil {
		return false, fmt.Errorf("read Pod %s: %w", owner.Name, err)
	}
	return slices.ContainsFunc(list.Items, func(pod v1.Pod) bool {
		return pod.UID == owner.UID && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil
	}), nil
}

// DeleteLostClaim deletes the claim of a lost volume for which GivesUp is true. It does nothing if,
// at the API server, the volume is no longer that claim's or no longer to be given up. why goes into
// the claim's Event.
func (c *Cluster) DeleteLostClaim(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, why string) {
	log := c.Log.With("claim", claim.Namespace+"/"+claim.Name, "volume", pv.Name, "why", why)
	now, holder, err := c.ReadVolume(ctx, pv)
	if err != nil && ctx.Err() == nil {
		log.Warn("failed to read a claim that is given up; will retry", "error", err)
	}
	if err != nil || holder == nil || holder.UID != claim.UID || holder.Spec.VolumeName != now.Name {
		return
	}
	if givesUp, err := c.readGivesUp(ctx, now, holder); err != nil || !givesUp {
		if err != nil && ctx.Err() == nil {
			log.Warn("failed to read the Pod of a claim that is given up; will retry", "error", err)
		}
		return
	}
	cause := "its class asks for that"
	if spec.OwnerPod(holder) != nil {
		cause = "its Pod was never on a node"
	}
	callCtx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	err = c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(callCtx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	switch {
	case err == nil:
		c.Recorder.Event(claim, v1.EventTypeWarning, ReasonNodeLost, why+"; the claim is deleted, as "+cause+", so that it can be made again elsewhere")
		log.Info("deleted the claim of a lost volume", "cause", cause)
	case !IsOutdated(err) && ctx.Err() == nil:
		log.Warn("a claim that is given up could not be deleted, trying on", "error", err)
	}
}

// DeviceClassOn returns the node's name for a device class. An empty class is the node's default;
// it is unknown until the node has reported.
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

// NodeEvent records an Event on a node.
func (c *Cluster) NodeEvent(node, kind, reason, message string) {
	if object, err := c.NodeLister.Get(node); err == nil {
		c.Recorder.Event(object, kind, reason, message)
	}
}

// Nodes returns the nodes with a recorded loss.
func (l *losses) Nodes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.gone))
}

// DeviceClassOf returns the node's name for the device class of a StorageClass, or false if it has
// none.
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
