// Package cluster is the view of the cluster that all parts of the controller share.
//
// It owns the informers and their indexes, what is a fact about a PersistentVolume (its node,
// its volume group), whether a node is gone or lost, which Pods use a volume, which capacity is held
// back because a node cannot provision, the recorder and the reasons of Events, and the making
// of patches. It decides nothing about claims and volumes.
//
// Vocabulary:
//
//	gone       a node whose Node object is deleted, or that is out of service
//	lost       a node that has been gone for a while, or is out of service, without uplink
//	held back  capacity that is published as zero, because creates would fail
//
// Callers: the controller and its packages provision, capacity, reclaim and audit.
package cluster
