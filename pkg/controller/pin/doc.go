// Package pin gives PersistentVolumes that were made without nodeAffinity one where their Pods
// could be bound to a node that does not have the volume, and ends Pods that were.
//
// The scheduler looks at a bound claim's nodeAffinity only. Without it, a Pod that loses its
// binding after the claim got its volume can go to any node. The PersistentVolume of a Pod that has
// its node needs none: no Pod ever changes its node, and no other one uses the claim.
//
// It also pins the volumes of a node that the Cluster Autoscaler means to remove, where no other node
// has the free space for them.
//
// Caller: the controller, while it leads.
package pin
