// Package capacity publishes the free space of nodes, as CSIStorageCapacity objects.
//
// The Publisher makes one object per node and StorageClass what it should be, from the ledger
// and from what is held back, and one per kind of node for the Cluster Autoscaler. The Owner is
// the Deployment that the objects belong to. The Untainter removes the start-up taint from
// nodes whose capacity is published.
//
// An object is never deleted for an error that may pass: without one the node cannot be
// scheduled to. Decreases are written at once, increases wait a moment for others.
//
// Caller: the controller, while it leads.
package capacity
