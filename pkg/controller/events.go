package controller

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reasons of our Events. Those of the upstream provisioner keep its names.
const (
	reasonProvisioning = "Provisioning"
	reasonSucceeded    = "ProvisioningSucceeded"
	reasonFailed       = "ProvisioningFailed"
	reasonDeleteFailed = "VolumeFailedDelete"
	// reasonNodeGone: a volume was given up because its node left the cluster.
	reasonNodeGone = "NodeGone"
	// reasonSourceNode: a claim can only be where what it is made of is.
	reasonSourceNode = "SourceNodeSelected"
	// reasonCopying: a volume is being copied for a claim.
	reasonCopying = "Copying"
	// reasonNodeLost: the node that holds a bound claim's volume is lost.
	reasonNodeLost = "NodeLost"
	// reasonVolumeEmptied: what an encrypted volume held is gone with its key.
	reasonVolumeEmptied = "VolumeEmptied"
	// reasonVolumeMissing: a volume is gone from its node without our doing.
	reasonVolumeMissing = "VolumeMissing"
	// reasonVolumeUnhealthy: lvmd or the node plugin found something wrong with it.
	reasonVolumeUnhealthy = "VolumeUnhealthy"
	// reasonVolumeRecovered: that is over.
	reasonVolumeRecovered = "VolumeRecovered"
	// reasonVolumeFound: it is there again.
	reasonVolumeFound = "VolumeFound"
	// reasonReportRefused: a node reports more than a node can hold.
	reasonReportRefused = "ReportRefused"
	// reasonHeldBack: creates fail on a node, whose capacity is held back for a while.
	reasonHeldBack = "CapacityHeldBack"
	// reasonOffered: a create succeeded there, and that is over.
	reasonOffered = "CapacityOfferedAgain"
	// reasonOrphanFound: a node has volumes that nobody knows.
	reasonOrphanFound = "OrphanFound"
	// reasonOrphanRemoved: they were removed.
	reasonOrphanRemoved = "OrphanRemoved"
	// reasonOrphanKept: they could not be removed.
	reasonOrphanKept = "OrphanNotRemoved"
)

// newRecorder makes the recorder of our Events, and what ends it.
func newRecorder(client kubernetes.Interface) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "carve-controller"}), broadcaster.Shutdown
}
