package controller

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// notConnectedAdvice is what to do about a node that cannot be asked.
const notConnectedAdvice = "is its Pod of the DaemonSet carve-node running? If the node will never come back, delete its Node object"

// doubtAdvice is what is awaited of a node that may hold a volume and cannot be asked.
const doubtAdvice = "waiting for it to come back, for its Node object to be deleted, or for the taint " + v1.TaintNodeOutOfService

// generalAdvice is what to do about a node's refusal, by lvmd's reason, whatever
// was asked of the node. What depends on that is said by the caller.
var generalAdvice = map[string]string{
	names.ReasonDeviceMissing:   "look at the disks of its volume group there (vgs, dmesg)",
	names.ReasonCommandTimedOut: "LVM does not answer there; look at the node's disks (dmesg)",
	names.ReasonCommandFailed:   "the log of lvmd there says more",
}

// refusal is a node's error in words for the user: where, what, and what to do.
func refusal(node string, err error) string {
	if fleet.IsNotConnected(err) {
		return err.Error() + "; " + notConnectedAdvice
	}
	text := fmt.Sprintf("node %s: %s", node, fleet.Message(err))
	if advice := generalAdvice[fleet.Reason(err)]; advice != "" {
		text += "; " + advice
	}
	return text
}

// sourceAdvice is what to do about a node's refusal to make a volume of
// another one.
var sourceAdvice = map[string]string{
	names.ReasonNoSpace:       "; it can be on no other node: free space there",
	names.ReasonVolumeInUse:   "; stop the Pods that use the source until it is copied (volumes of thin classes can be cloned while they are in use)",
	names.ReasonNotThin:       "; name the StorageClass of the source",
	names.ReasonDeviceMissing: "; it can be on no other node",
}
