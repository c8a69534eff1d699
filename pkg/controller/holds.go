package controller

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// newAvailability makes the replica's view of which nodes can provision.
func (c *Controller) newAvailability() *availability {
	return &availability{
		connected: func(node string) bool {
			view, ok := c.core.fleet.View(node)
			return ok && view.Connected
		},
		hold:    c.core.ledger.Hold,
		changed: c.availabilityChanged,
		now:     func() time.Time { return c.core.now() },
		log:     c.o.Log,
		grace:   awayGrace, least: holdLeast, most: holdMost,
		nodes: map[string]*standing{},
	}
}

// availabilityChanged publishes a node's capacity anew where this replica leads.
func (c *Controller) availabilityChanged(node string) {
	c.mu.Lock()
	a := c.acting
	c.mu.Unlock()
	if a != nil {
		a.publisher.nodeChanged(node)
	}
}

// followHolds has a replica that does not lead take over which nodes the leader holds
// back, for its extender, and for the time when it leads.
func (c *Controller) followHolds() error {
	follow := func(obj any) {
		c.mu.Lock()
		leads := c.acting != nil
		c.mu.Unlock()
		if object, ok := obj.(*storagev1.CSIStorageCapacity); ok && !leads {
			c.core.adoptHold(object)
		}
	}
	_, err := c.core.capacities.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: follow, UpdateFunc: func(_, obj any) { follow(obj) },
	})
	return err
}

// adoptHolds takes over what the leader before held back.
func (c *Controller) adoptHolds() {
	for _, obj := range c.core.capacities.GetStore().List() {
		if object, ok := obj.(*storagev1.CSIStorageCapacity); ok && object.Annotations[names.AnnotationHeldBack] != "" {
			c.core.adoptHold(object)
		}
	}
}

// adoptHold takes over what another replica noted on a capacity object.
func (c *core) adoptHold(object *storagev1.CSIStorageCapacity) {
	key := capacityKey{node: topologyNode(object), class: object.StorageClassName}
	class, ok := c.deviceClassOf(key)
	if !ok {
		return
	}
	var until time.Time
	if noted := object.Annotations[names.AnnotationHeldBack]; noted != "" {
		var err error
		if until, err = time.Parse(time.RFC3339Nano, noted); err != nil {
			return
		}
	}
	c.available.adopt(key.node, class, until)
}

// deviceClassOf returns the name by which a node knows the device class of a
// StorageClass, or false where it has none.
func (c *core) deviceClassOf(key capacityKey) (string, bool) {
	class, ours := c.ourClass(key.class)
	if !ours {
		return "", false
	}
	params, err := parseClass(class)
	if err != nil {
		return "", false
	}
	return c.deviceClassOn(key.node, params.deviceClass)
}

// deviceClassOn returns the name by which a node knows a device class, of which the
// empty one is its default.
func (c *core) deviceClassOn(node, class string) (string, bool) {
	if class != "" {
		return class, true
	}
	view, ok := c.fleet.View(node)
	if !ok {
		return "", false
	}
	on, ok := view.Class("")
	return on.GetName(), ok
}

// noteFailure counts a create that failed against the node, where the node is to blame:
// not for a copy, which can fail for its source. A claim counts against one node only,
// so that a claim with which every node fails does not hold them all back.
func (p *provisioner) noteFailure(ctx context.Context, a *attempt, r request, node string, began time.Time, cause error) {
	fault, definite := nodesFault(cause)
	if !fault || ctx.Err() != nil || r.from != nil {
		return
	}
	if a.blamed == "" {
		a.blamed = node
	}
	class, ok := p.deviceClassOn(node, r.deviceClass)
	if a.blamed != node || !ok {
		return
	}
	length := p.available.failed(node, class, began, definite)
	if length == 0 {
		return
	}
	p.nodeEvent(node, v1.EventTypeWarning, reasonHeldBack, "creating volumes in device class "+class+" fails: "+fleet.Message(cause)+
		"; its capacity is published as zero for "+length.String()+", then it is tried again. The log of lvmd on the node says more")
}

// noteSuccess offers a node without reserve on which a create succeeded.
func (p *provisioner) noteSuccess(node, class string) {
	if p.available.succeeded(node, class) {
		p.nodeEvent(node, v1.EventTypeNormal, reasonOffered, "a volume was created in device class "+class+", its capacity is published again")
	}
}

// nodeEvent writes an Event on a node.
func (p *provisioner) nodeEvent(node, kind, reason, message string) {
	if object, err := p.nodeLister.Get(node); err == nil {
		p.recorder.Event(object, kind, reason, message)
	}
}
