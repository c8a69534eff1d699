// Package lvmd is the daemon that owns a node's volume groups: it creates, formats, grows, wipes
// and frees volumes, and reports them and the free space to watchers.
//
// It owns the gRPC service of api/lvmd/v1 and the order of each method's steps. Package
// inventory holds lvmd's knowledge, package volumegroup runs the commands that change a group,
// and package reclaim frees deleted volumes. lvmd never mounts, never talks to Kubernetes and
// runs LVM only through pkg/lvm.
//
// Vocabulary
//
//	intent     a journal record of an operation that is about to begin
//	tombstone  a volume that its users deleted, still to be wiped and removed;
//	           its space counts as used
//	slot       the right to run a command that changes a group; one per group,
//	           shared fairly among tenants, see fairqueue
//
// Invariants
//
//   - The disk is the truth: LVM decides whether a volume exists, its tags whose
//     it is. The journal only records the progress of operations.
//   - An intent is durable before its first effect; a start finishes
//     or undoes every intent that it finds.
//   - Mkfs and wiping never run in a slot. The inventory's lock is never held
//     across a command, a disk access or a call to a client.
//   - No extent becomes free before its wipe is durable.
//
// Locks: admission, then a group's slot, then a transaction of the journal, then the
// inventory's lock, never the other way.
//
// Callers: cmd/lvmd.
package lvmd
