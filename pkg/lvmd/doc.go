// Package lvmd is the daemon that owns a node's volume groups: it makes,
// formats, grows, wipes and frees volumes, and reports to watchers what
// there is and how much space is left.
//
// It owns the gRPC service of api/lvmd/v1, and the order of the steps of each of its methods.
// What lvmd knows is in package inventory; commands that change a group run in package
// volumegroup; deleted volumes are freed by package reclaim. lvmd never mounts, never
// talks to Kubernetes and never runs LVM but through pkg/lvm.
//
// Vocabulary
//
//	intent     a record in the journal of what is about to be done
//	tombstone  a volume that was deleted for its users and is yet to be wiped
//	           and removed; its space counts as used
//	slot       the right to run a command that changes a group; one at a time
//	           per group, shared fairly by the tenants, see fairqueue
//
// Invariants
//
//   - The disk is the truth: a volume exists when LVM says so, and its tags
//     say whose it is. The journal only says how far an operation has come.
//   - An intent is durable before its first effect; whatever is found at start
//     is finished or undone.
//   - Mkfs and wiping never run in a slot. The inventory's lock is never held
//     across a command, a disk access or a call to a client.
//   - No extent is free before it was wiped and the wipe is durable.
//
// Locks: admission, then a group's slot, then a transaction of the journal, then the
// inventory's lock, never the other way.
//
// Callers: cmd/lvmd.
package lvmd
