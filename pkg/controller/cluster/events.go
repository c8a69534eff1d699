package cluster

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reasons of our Events, which EventReasons describes. Those of the upstream provisioner keep its
// names.
const (
	ReasonProvisioning    = "Provisioning"
	ReasonSucceeded       = "ProvisioningSucceeded"
	ReasonFailed          = "ProvisioningFailed"
	ReasonDeleteFailed    = "VolumeFailedDelete"
	ReasonNodeGone        = "NodeGone"
	ReasonCopying         = "Copying"
	ReasonNodeLost        = "NodeLost"
	ReasonMisplaced       = "PodMisplaced"
	ReasonVolumeEmptied   = "VolumeEmptied"
	ReasonVolumeMissing   = "VolumeMissing"
	ReasonVolumeUnhealthy = "VolumeUnhealthy"
	ReasonVolumeRecovered = "VolumeRecovered"
	ReasonReportRefused   = "ReportRefused"
	ReasonHeldBack        = "CapacityHeldBack"
	ReasonClassUnhealthy  = "DeviceClassUnhealthy"
	ReasonClassRecovered  = "DeviceClassRecovered"
	ReasonLabelMissing    = "TopologyLabelMissing"
	ReasonOrphanFound     = "OrphanFound"
	ReasonOrphanRemoved   = "OrphanRemoved"
)

// EventReason describes the Events of one reason. docs/reference/events.md is generated from
// EventReasons.
type EventReason struct {
	Reason string
	// Type is v1.EventTypeNormal or v1.EventTypeWarning.
	Type string
	// On lists the objects that carry the Event.
	On string
	// Meaning says when the Event occurs, Remedy what to do, if anything. Both are Markdown.
	Meaning, Remedy string
}

// EventReasons lists all Events of the controller, in the order of a claim's course.
var EventReasons = []EventReason{
	{ReasonProvisioning, v1.EventTypeNormal, "claim", "A node was asked for the volume, and has not answered for 5 s; or how much of a raw block volume it has cleared, every five minutes. Or the controller selected the node of a clone's or restore's source.", ""},
	{ReasonCopying, v1.EventTypeNormal, "claim", "How much of the source is copied, once a minute.", ""},
	{ReasonSucceeded, v1.EventTypeNormal, "claim", "The PersistentVolume exists, for a claim that had another Event of the controller before. What is made quickly and at once has none.", ""},
	{ReasonFailed, v1.EventTypeWarning, "claim", "The volume was not made. The message names the field or the node, and what is allowed or awaited.",
		"[Read the message](../how-to/troubleshooting.md#provisioningfailed). A claim that met a full node is rescheduled by itself."},
	{ReasonDeleteFailed, v1.EventTypeWarning, "PersistentVolume", "The volume could not be deleted yet: the node refused, or a claim names the volume.",
		"[See who uses it, or whether the node is there](../how-to/troubleshooting.md#persistentvolume-stays-released)."},
	{ReasonNodeGone, v1.EventTypeNormal, "PersistentVolume", "A released volume was abandoned, because its node is lost.", ""},
	{ReasonNodeLost, v1.EventTypeWarning, "claim, and the Pods that use it", "The node that holds the volume is lost, or has other disks. The message says whether the claim is kept or deleted. " +
		"On a Pod that waits for lost disks: it is deleted, to be made again.", "[Decide what becomes of the data](../how-to/replace-nodes.md)."},
	{ReasonMisplaced, v1.EventTypeWarning, "Pod", "The Pod was bound to another node than the one that has its [movable volume](../how-to/autoscaling.md#let-pods-with-ephemeral-volumes-move). " +
		"It cannot start there, and is deleted if a controller makes it again.", "Delete the Pod if the message says so."},
	{ReasonVolumeMissing, v1.EventTypeWarning, "claim, PersistentVolume, and the Pods that use the claim", "A connected node does not have the volume any more. It is not made again.",
		"[Find the disk](../how-to/troubleshooting.md#volumemissing)."},
	{ReasonVolumeUnhealthy, v1.EventTypeWarning, "claim, and the Pods that use it; of an inline volume its Pod", "The volume has a condition.", "[Look up the condition](conditions.md)."},
	{ReasonVolumeRecovered, v1.EventTypeNormal, "claim, and the Pods that use it; of an inline volume its Pod; of a volume that was missing also the PersistentVolume", "The conditions that the message names are over.", ""},
	{ReasonVolumeEmptied, v1.EventTypeWarning, "claim, PersistentVolume, and the Pods that use it; of an inline volume its Pod", "An encrypted volume with an ephemeral key is empty after a restart of its node.",
		"None: [that is what the key is for](../how-to/encryption.md#ephemeral-keys). Fill it again."},
	{ReasonReportRefused, v1.EventTypeWarning, "node", "The node reports more than a node can hold (20,000 volumes, 256 device classes or 16 MiB), or an id or name that cannot be one. Nothing is provisioned there.",
		"Reduce what the message names."},
	{ReasonHeldBack, v1.EventTypeWarning, "node", "Creating volumes fails there. The capacity of the device class is published as zero for a while.",
		"[Read why](../how-to/troubleshooting.md#a-nodes-capacity-is-zero)."},
	{ReasonClassUnhealthy, v1.EventTypeWarning, "node", "A device class there has a condition. The message says whether no volume can be made in it.",
		"[Look up the condition](conditions.md) that the message names."},
	{ReasonClassRecovered, v1.EventTypeNormal, "node", "The conditions of a device class that the message names are over. After `CapacityHeldBack`, a volume was made there, and the capacity is published again.", ""},
	{ReasonLabelMissing, v1.EventTypeWarning, "node", "The Node object does not have the label `topology.carve.csi.local/node`, and no Pod with a volume is scheduled there; or the label has the name of another node, whose Pods are scheduled there.",
		"[Set it](../how-to/troubleshooting.md#a-node-has-no-topology-label)."},
	{ReasonOrphanFound, v1.EventTypeWarning, "node", "The node holds volumes that no PersistentVolume and no claim names. Or they could not be removed: the message says why, and the controller retries every minute.",
		"[Keep, adopt or delete them](../how-to/existing-volumes.md)."},
	{ReasonOrphanRemoved, v1.EventTypeNormal, "node", "Such volumes were removed (`--remove-orphans`).", ""},
}

// NewRecorder returns the recorder of our Events and a function that stops it.
func NewRecorder(client kubernetes.Interface) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "carve-controller"}), broadcaster.Shutdown
}
