// Package reclaim ends volumes. The Deleter removes released volumes from their nodes. The releaser
// deletes claims whose node is lost, if their class says so.
//
// A PersistentVolume keeps its finalizer until its volume is gone from the node, or the node is
// lost.
//
// Caller: the controller, while it leads.
package reclaim
