package controller

import (
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

func (c *Controller) newAvailability() *cluster.Availability {
	connected := func(node string) bool {
		view, ok := c.core.Fleet.View(node)
		return ok && view.Connected
	}
	return cluster.NewAvailability(connected, c.core.ledger, c.availabilityChanged, func() time.Time { return c.core.Now() }, c.o.Log)
}

func (c *Controller) availabilityChanged(node string) {
	a := c.acting.Load()
	if a == nil {
		return
	}
	a.publisher.NodeChanged(node)
	if a.conditions != nil {
		a.conditions.NodeChanged(node)
	}
}

// adoptHolds takes over the previous leader's holds, in place of those of an earlier term of
// this replica.
func (c *Controller) adoptHolds() {
	for _, object := range cluster.List(c.core.Capacities) {
		c.core.adoptHold(object)
	}
}

// adoptHold reads the annotation of a capacity object.
func (c *core) adoptHold(object *storagev1.CSIStorageCapacity) {
	node := capacity.TopologyNode(object)
	class, ok := c.DeviceClassOf(node, object.StorageClassName)
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
	c.available.Adopt(node, class, until)
}
