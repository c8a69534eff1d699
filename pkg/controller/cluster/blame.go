package cluster

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// CountFailure counts a failed create against a device class of a node if the node is the cause. An
// empty deviceClass is the node's default. If the class is then held back, the node gets an Event.
func (c *Cluster) CountFailure(a *Availability, node, deviceClass string, began time.Time, cause error) {
	fault, definite := NodeFault(cause)
	class, ok := c.DeviceClassOn(node, deviceClass)
	if !fault || !ok {
		return
	}
	if a.Failed(node, class, began, definite) == 0 {
		return
	}
	c.NodeEvent(node, v1.EventTypeWarning, ReasonHeldBack, "creating volumes in device class "+class+" fails: "+Words(cause)+
		"; its capacity is published as zero for a while, each time for longer, then it is tried again. The log of lvmd on the node says more")
}

// CountSuccess forgets the failures of a class after a create succeeded.
func (c *Cluster) CountSuccess(a *Availability, node, class string) {
	if a.Succeeded(node, class) {
		c.ClassRecovered(node, class, ReasonHeldBack)
	}
}

// ClassRecovered writes an Event on a node whose device class no longer has conditions, or is no
// longer held back. kubectl carve doctor parses it.
func (c *Cluster) ClassRecovered(node, class string, from ...string) {
	c.NodeEvent(node, v1.EventTypeNormal, ReasonClassRecovered, "device class "+class+" recovered from: "+strings.Join(from, ", "))
}
