// Package lvmd is the daemon that owns a node's volume groups: it carves,
// formats, grows, wipes and frees volumes, and tells those who watch what
// there is and what room is left.
//
// It owns the model of the volume groups, the journal, the order in which LVM
// commands run, and the gRPC service of api/lvmd/v1. It never mounts, never
// talks to Kubernetes and never runs LVM but through pkg/lvm.
//
// Vocabulary
//
//	model      what lvmd believes of each group, checked against the group's
//	           sequence number; every read is answered from it
//	intent     a record in the journal of what is about to be done
//	tombstone  a volume that was deleted for its users and is yet to be wiped
//	           and removed; its space counts as used
//	turn       the right to run a command that changes a group; one at a time
//	           per group; those for whom they are, see caller, take turns
//
// Invariants
//
//   - The disk is the truth: a volume exists when LVM says so, and its tags
//     say whose it is. The journal only says how far an operation has come.
//   - An intent is durable before its first effect; whatever is found at start
//     is finished or undone.
//   - Mkfs and wiping never run in a turn. The lock on the model is never held
//     across a command, a disk access or a call to a client, but for the one
//     commit of a reload.
//   - No extent is free before it was wiped and the wipe is durable.
//
// Locks: a group's turn, and a transaction of the journal, are taken before the
// model's lock, never after.
//
// Callers: cmd/lvmd.
package lvmd
