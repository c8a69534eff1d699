// Package pin adds a nodeAffinity to PersistentVolumes created without one if their Pods could be
// bound to a wrong node, and deletes Pods that were.
//
// The scheduler only reads the nodeAffinity of a bound claim. Without it, a Pod that loses its
// binding after its claim got its volume can go to any node. Once the Pod has its node, the volume
// needs none: a Pod never changes its node, and no other Pod uses the claim.
//
// The package also pins the volumes of a node that the Cluster Autoscaler means to remove, if no
// other node has the free space for them.
//
// Caller: the controller, while it leads.
package pin
