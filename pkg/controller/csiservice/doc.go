// Package csiservice is the CSI Controller service, and the Identity service
// beside it, on a unix socket of the controller: for conformance suites, and
// for components that drive CSI by other means than the controller's own reconcilers.
//
// It owns the translation between CSI and the nodes' lvmds: what a request
// means, on which node it is to be done, which code an error has. It keeps no
// state but which creates it is not sure of, writes nothing to the Kubernetes
// API but Events of nodes on which creating fails, and never decides what a volume's parameters mean: it is given a function for that.
//
// Vocabulary: a volume's id is lvmd's; a snapshot's is "NODE/ID", for nodes
// report their volumes unasked and their snapshots only when asked. A node is
// absent when it may hold volumes and cannot be asked now.
//
// Invariants: what an absent node may hold is never called gone, or made
// elsewhere while its outcome is unknown; a volume that is made here carries no claim's
// UID, and so is never taken for an orphan.
//
// Caller: pkg/controller. Read it from service.go.
package csiservice
