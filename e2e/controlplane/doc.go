// Package controlplane runs the control plane of a test cluster on this machine: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, each a process of its own
// from the one binary of package kube, all in one network namespace and bound to its
// addresses alone.
//
// The processes are detached: they outlive the program that started them and are found
// again by what they are, a process in the namespace that has a component's name, so no
// file of process ids can be wrong. All that must survive them (keys, certificates,
// etcd's data) lies in one folder; starting twice over the same folder, or over what a
// crash left, is the normal case. The package does not lock the folder: only one
// Start or Stop may run on it at a time.
//
// Authorization is as on a production cluster: Node and RBAC, with NodeRestriction, and
// each component under its own identity. Only etcd's durability is given up: it does
// not flush to the disk, so a crash of this machine, unlike one of a process, loses it.
//
// Vocabulary: the folder is Options.Dir; a component is one of the four processes.
package controlplane
