// Package reclaim ends volumes: the Deleter removes those that were released from their nodes,
// and the Releaser deletes claims whose node is lost, where their class says so.
//
// A PersistentVolume keeps its finalizer until the volume is gone from the node, or the node
// is lost.
//
// Caller: the controller, while it leads.
package reclaim
