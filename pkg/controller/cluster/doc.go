// Package cluster is the view of the cluster that all parts of the controller share.
//
// It owns the informers and their indexes, facts about PersistentVolumes (node, volume group),
// whether a node is gone or lost, which Pods use a volume, which capacity is held back because a
// node cannot provision, the recorder and the reasons of Events, and the creation of patches. It
// decides nothing about claims and volumes.
//
// Vocabulary:
//
//	gone       a node whose Node object is deleted, or that is out of service
//	lost       a node without uplink that has been gone for a while, or is out of service
//	held back  capacity that is published as zero, because creates would fail
//
// Callers: the controller and its packages provision, capacity, reclaim and audit.
package cluster
