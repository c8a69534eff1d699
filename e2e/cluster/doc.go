// Package cluster runs a real Kubernetes cluster on this machine: the control
// plane as processes of the host (package controlplane), the nodes as machines
// (package vm), each with containerd, kubelet, a Pod network
// and disks of its own. Everything is in one network namespace; nothing of it
// listens, or can be reached, outside.
//
// A cluster has a name, and what belongs to it can be found by that name alone: the
// network namespace carve-NAME with all processes in it, and a folder. There is no
// list of processes that could be wrong after a crash, so Up goes on from wherever
// another Up got to, and Down removes whatever there is. Both take the cluster's
// lock; clusters of other names are independent.
//
// A node is switched off by Kill as by a power cut. Its disks, its persistent
// memory and all below /var/lib and /var/log outlive that; the rest of its root
// file system is made again at every start.
//
// What an administrator would have prepared on each node is there: the volume
// group carve on /dev/vdb and, where nodes have persistent memory, the volume group
// carve-pmem on /dev/pmem0. /dev/vdc is left empty for tests. Volumes are not activated at a node's start: that is the
// storage driver's business.
package cluster
