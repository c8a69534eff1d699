// Package capacity publishes the free space of nodes as CSIStorageCapacity objects.
//
// The Publisher keeps one object per node and StorageClass, from the ledger and the holds, and one
// per kind of node for the Cluster Autoscaler. The Owner is the Deployment that the objects belong
// to. The Untainter removes the start-up taint from nodes whose capacity is published.
//
// The Publisher never deletes an object because of a temporary error: the scheduler would not
// choose the node without one. It writes decreases at once; increases wait a moment for others.
//
// Caller: the controller, while it leads.
package capacity
