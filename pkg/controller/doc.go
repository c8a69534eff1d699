// Package controller turns claims into volumes on nodes, and says how much
// room is left.
//
// It owns the conversation with the Kubernetes API: the provisioner (claims to
// volumes), the binder (what the PV controller would do next, sooner), the
// deleter (released volumes), the capacity publisher (CSIStorageCapacity) and
// the leader election around them. It keeps no state of its own: all of it is
// derived from the API server and from what nodes report, and may be lost at
// any instant. It never runs on a node and never guesses what is on one.
//
// Vocabulary:
//
//	claim      a PersistentVolumeClaim whose StorageClass is ours
//	selected   the node that the scheduler chose for a claim (late binding), or
//	           that we chose (immediate binding)
//	attempt    what is remembered of a claim while it is being provisioned
//	doubt      a node on which a create may have had effect without our knowing
//	release    to hand a claim back to the scheduler by removing its
//	           selected-node annotation
//
// Invariants: a PersistentVolume names the node that answered the create, so
// it can never be pinned to a node that does not hold the volume; a claim with
// a doubt is given to another node only after the doubted one said that it
// holds no such volume; only the leader writes.
//
// The life of a claim is drawn in docs/claims.md. Caller: cmd/controller.
package controller
